//! A message to a client, as both generations take it and answer it.

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa::openapi::schema::SchemaType;
use utoipa::openapi::{Object, ObjectBuilder};
use uuid::Uuid;

use super::ApiState;
use super::error::ApiError;
use super::json::{self, Json};
use crate::delivery::Request;
use crate::domain::Connection;
use crate::protocol::is_valid_metadata;
use crate::telemetry::metrics;

/// The title of what was not sent, or not surely.
pub(super) const FAILED: &str = "Error passing message to rhc client";

/// What a caller wants sent, as it came.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct Message {
    /// What the receiving application should do: more than white space.
    #[serde(default)]
    #[schema(
        value_type = String,
        required = true,
        // White space, spelled out: readers of patterns do not agree what `\s` is.
        pattern = r"[^\t-\r \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]",
        example = "echo"
    )]
    directive: Option<String>,
    /// Handed to the application with the payload.
    #[serde(default)]
    #[schema(value_type = Option<HashMap<String, String>>, example = json!({"key": "value"}))]
    metadata: Value,
    #[serde(default)]
    #[schema(schema_with = anything)]
    payload: Value,
}

fn anything() -> Object {
    ObjectBuilder::new()
        .schema_type(SchemaType::AnyValue)
        .description(Some("Anything; the application knows what it means."))
        .examples([Value::from("hello")])
        .build()
}

/// The broker has the message.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Sent {
    /// The message's id, that the client will name in its answer.
    id: Uuid,
}

impl Message {
    /// Whether it names a directive at all: an empty one is none.
    pub fn has_directive(&self) -> bool {
        self.directive.as_ref().is_some_and(|text| !text.is_empty())
    }

    /// What is sent, if clients would take it.
    pub fn checked(self) -> Result<Request, ApiError> {
        let directive = self.directive.unwrap_or_default();
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
        if !is_valid_metadata(&self.metadata) {
            // A real client would drop the message without a word.
            return Err(ApiError::bad_json(
                "metadata must be null or a map of string to string",
            ));
        }
        Ok(Request {
            directive,
            metadata: self.metadata,
            payload: self.payload,
        })
    }
}

/// Sends it to the connection that was found, and says so when the broker has it.
pub(super) async fn send(
    parts: &ApiState,
    found: Option<Connection>,
    request: Request,
) -> Result<(StatusCode, Json<Sent>), ApiError> {
    let Some(connection) = found else {
        metrics::sent("no_connection");
        return Err(ApiError::no_connection());
    };
    let sent = parts.delivery.send(&connection, request).await;
    let id = sent.map_err(|error| ApiError::not_sent(FAILED, error))?;
    Ok((StatusCode::CREATED, Json(Sent { id })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(body: Value) -> Result<Request, ApiError> {
        serde_json::from_value::<Message>(body).unwrap().checked()
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
