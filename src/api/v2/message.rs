//! `POST /v2/connections/{client_id}/message`: a message to one client.

use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::api::Shared;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::json::{self, Json};
use crate::deliver::Request;
use crate::domain::ClientId;
use crate::protocol::is_metadata;

#[derive(Debug, Deserialize)]
struct MessageRequest {
    #[serde(default)]
    directive: Option<String>,
    #[serde(default)]
    metadata: Value,
    #[serde(default)]
    payload: Value,
}

#[derive(Debug, Serialize)]
struct Sent {
    id: Uuid,
}

pub(super) async fn send(
    State(shared): State<Shared>,
    caller: Caller,
    client_id: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<impl IntoResponse, ApiError> {
    let request = checked(json::read(body)?)?;
    // A name that no client can have is a client that is not connected.
    let client = client_id
        .ok()
        .and_then(|Path(name)| ClientId::new(&name).ok())
        .ok_or_else(ApiError::no_connection)?;
    let id = shared.delivery.send(&caller.org, &client, request).await?;
    Ok((StatusCode::CREATED, Json(Sent { id })))
}

fn checked(request: MessageRequest) -> Result<Request, ApiError> {
    let directive = request.directive.unwrap_or_default();
    if directive.is_empty() {
        return Err(json::missing_fields());
    }
    if directive.trim().is_empty() {
        return Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            "Directive field is empty",
            "The directive names what the receiving application should do",
        ));
    }
    if !is_metadata(&request.metadata) {
        // A real client would drop the message without a word.
        return Err(ApiError::bad_json(
            "metadata must be null or a map of string to string",
        ));
    }
    Ok(Request {
        directive,
        metadata: request.metadata,
        payload: request.payload,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(body: Value) -> Result<Request, ApiError> {
        checked(serde_json::from_value(body).unwrap())
    }

    #[test]
    fn metadata_and_payload_may_be_absent_or_null() {
        for body in [
            json!({"directive": "x"}),
            json!({"directive": "x", "metadata": null, "payload": null}),
        ] {
            let request = check(body).unwrap();
            assert_eq!(request.metadata, Value::Null);
            assert_eq!(request.payload, Value::Null);
        }
    }

    #[test]
    fn a_directive_is_needed_and_metadata_must_be_strings() {
        for bad in [
            json!({}),
            json!({"directive": ""}),
            json!({"directive": " \t"}),
            json!({"directive": "x", "metadata": {"a": 1}}),
            json!({"directive": "x", "metadata": ["a"]}),
            json!({"directive": "x", "metadata": "a"}),
        ] {
            assert!(check(bad.clone()).is_err(), "{bad}");
        }
        assert!(check(json!({"directive": "x", "metadata": {"a": "1"}})).is_ok());
    }
}
