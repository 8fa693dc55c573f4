//! `POST /v2/connections/{client_id}/message`: sends a message to a client.

use axum::extract::rejection::PathRejection;
use axum::extract::{OriginalUri, State};
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::{ClientIdParam, ClientIdPath, client_id_from_path};
use crate::auth::OrgCaller;
use crate::error::ApiError;
use crate::request_body::RequestBody;
use crate::send_message::{self, MessageAccepted, MessageRequest};
use crate::{SharedState, json};
use delivery::MessageSender;

/// Request body with a message for a client, and how it is delivered.
#[derive(Debug, Deserialize, ToSchema)]
struct TrackableMessageRequest {
    #[serde(flatten)]
    message: MessageRequest,
    /// Whether to store the state of the message and the client's answer. `GET /v2/messages/{id}` returns
    /// both.
    #[serde(default)]
    #[schema(value_type = bool, required = false)]
    track: Value,
    #[serde(default)]
    #[schema(ignore)]
    queue: Value,
}

impl TrackableMessageRequest {
    /// Returns whether the message is tracked.
    fn is_tracked(&self) -> Result<bool, ApiError> {
        if !self.queue.is_null() {
            return Err(ApiError::invalid_body(
                "queue is not supported: messages are sent at once",
            ));
        }
        match self.track {
            Value::Null => Ok(false),
            Value::Bool(track) => Ok(track),
            _ => Err(ApiError::invalid_body("track must be true or false")),
        }
    }
}

/// OpenAPI description of the header.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only documents the parameter")]
struct IdempotencyKeyParam {
    /// A repeated request with the same key and body within 24 hours gets the first response with the
    /// header `Idempotent-Replayed: true`, and sends nothing. The message is tracked. Responses with
    /// status 4xx or 503 are not repeated, because nothing was sent.
    #[param(
        rename = "Idempotency-Key",
        min_length = 1,
        max_length = 255,
        pattern = "^[!-~]+$"
    )]
    idempotency_key: Option<String>,
}

/// Send a message to a client
///
/// Responds after the broker has acknowledged the message. With `track`, the message is stored before it
/// is sent.
#[utoipa::path(
    post,
    path = "/connections/{client_id}/message",
    operation_id = "v2.connection.message",
    params(ClientIdParam, IdempotencyKeyParam),
    request_body = TrackableMessageRequest,
    responses(
        (
            status = 201,
            description = "The broker acknowledged the message.",
            body = MessageAccepted
        ),
        (
            status = 404,
            description = "The organization has no such connected client.",
            body = ApiError
        ),
        (
            status = 409,
            description = "An earlier request with the same `Idempotency-Key` is in progress.",
            body = ApiError
        ),
        (
            status = 422,
            description = "The `Idempotency-Key` belongs to another request.",
            body = ApiError
        ),
        (
            status = 504,
            description = "The broker did not acknowledge the message; it may still arrive.",
            body = ApiError
        ),
    ),
)]
pub(super) async fn send(
    State(state): State<SharedState>,
    caller: OrgCaller,
    method: Method,
    headers: HeaderMap,
    OriginalUri(uri): OriginalUri,
    path: Result<ClientIdPath, PathRejection>,
    body: RequestBody,
) -> Result<Response, ApiError> {
    let request: TrackableMessageRequest = json::parse_body(&body)?;
    let is_tracked = request.is_tracked()? || state.tracks_all;
    let content = request.message.validate()?;
    let idempotent_request =
        state.idempotent_request(&headers, &caller, (&method, uri.path(), &body))?;
    if let Some(request) = &idempotent_request
        && let Some(response) = state.replayed_response(request).await?
    {
        return Ok(response);
    }
    let client_id = client_id_from_path(path);
    let connection = state
        .find_reachable_connection(&caller.org_id, &client_id)
        .await?;
    let sender = (is_tracked || idempotent_request.is_some()).then(|| MessageSender {
        org_id: caller.org_id,
        caller: caller.audit_name,
        idempotent_request: idempotent_request.clone(),
    });
    let sending =
        send_message::send_message(&state, connection, content, sender, state.ack_timeout);
    match idempotent_request {
        Some(request) => {
            let result = sending.await;
            Ok(state.store_first_response(&request, result).await)
        }
        None => sending.await.map(IntoResponse::into_response),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn track_is_a_boolean_and_unknown_fields_are_ignored() {
        let is_tracked = |body: Value| {
            let request = serde_json::from_value::<TrackableMessageRequest>(body).unwrap();
            request.is_tracked()
        };
        assert!(!is_tracked(json!({"directive": "x"})).unwrap());
        assert!(!is_tracked(json!({"directive": "x", "track": null, "y": 1})).unwrap());
        assert!(!is_tracked(json!({"directive": "x", "track": false})).unwrap());
        assert!(is_tracked(json!({"directive": "x", "track": true})).unwrap());
        for invalid in [json!("true"), json!(1), json!({})] {
            let body = json!({"directive": "x", "track": invalid});
            assert!(is_tracked(body.clone()).is_err(), "{body}");
        }
        assert!(is_tracked(json!({"directive": "x", "queue": {}})).is_err());
    }
}
