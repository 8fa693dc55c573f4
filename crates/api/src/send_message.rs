//! Sends a message to a client, for v1 and v2.

use std::time::Duration;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa::openapi::schema::SchemaType;
use utoipa::openapi::{Object, ObjectBuilder};
use uuid::Uuid;

use super::ApiState;
use super::error::ApiError;
use super::idempotency::in_progress_error;
use super::json::{self, Json};
use delivery::{self, MessageContent, MessageSender, SendStatus, TrackedSendError};
use domain::Connection;
use protocol::is_valid_metadata;

/// Error title for a message that was not sent, or that the broker did not acknowledge.
pub(super) const SEND_FAILED_TITLE: &str = "Error passing message to rhc client";

/// Request body with a message for a client.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct MessageRequest {
    /// Application-defined name that selects how the client handles the message. Must contain a
    /// character that is not white space.
    #[serde(default)]
    #[schema(
        value_type = String,
        required = true,
        // The pattern lists all white-space characters instead of using `\s`, because regex engines
        // differ in the characters that match `\s`.
        pattern = r"[^\t-\r \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]",
        example = "echo"
    )]
    directive: Option<String>,
    /// Application-defined key-value pairs, sent with the payload.
    #[serde(default)]
    #[schema(value_type = Option<HashMap<String, String>>, example = json!({"key": "value"}))]
    metadata: Value,
    #[serde(default)]
    #[schema(schema_with = payload_schema)]
    payload: Value,
}

fn payload_schema() -> Object {
    ObjectBuilder::new()
        .schema_type(SchemaType::AnyValue)
        .description(Some("Application-defined content: any JSON value."))
        .examples([Value::from("hello")])
        .build()
}

/// Response to a message that the broker acknowledged.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MessageAccepted {
    /// Id of the message. The client's response refers to this id.
    id: Uuid,
}

impl MessageAccepted {
    /// Creates the response for a message.
    pub fn new(id: Uuid) -> Self {
        Self { id }
    }

    /// Returns the id of the message.
    pub fn id(&self) -> Uuid {
        self.id
    }
}

impl MessageRequest {
    /// Returns whether the request has a directive. An empty directive counts as missing.
    pub fn has_directive(&self) -> bool {
        self.directive.as_ref().is_some_and(|text| !text.is_empty())
    }

    /// Checks the directive and the metadata, and returns the content to send.
    pub fn validate(self) -> Result<MessageContent, ApiError> {
        let directive = self.directive.unwrap_or_default();
        if directive.is_empty() {
            return Err(json::missing_fields_error());
        }
        if directive.trim().is_empty() {
            return Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                "Directive field is empty",
                "directive must contain more than white space",
            ));
        }
        if !is_valid_metadata(&self.metadata) {
            return Err(ApiError::invalid_body(
                "metadata must be null or a map of string to string",
            ));
        }
        Ok(MessageContent {
            directive,
            metadata: self.metadata,
            payload: self.payload,
        })
    }
}

/// Sends a message to the client of `connection`. Tracks the message if it has a sender. Returns after
/// the broker has acknowledged the message, but waits at most `ack_timeout`. Returns a 404 error if
/// `connection` is `None`.
pub(super) async fn send_message(
    state: &ApiState,
    connection: Option<Connection>,
    content: MessageContent,
    sender: Option<MessageSender>,
    ack_timeout: Duration,
) -> Result<(StatusCode, Json<MessageAccepted>), ApiError> {
    let Some(connection) = connection else {
        delivery::metrics::count_message_to_client(SendStatus::NotConnected.as_str());
        return Err(ApiError::no_connection());
    };
    let send_error = |error| ApiError::send_failed(SEND_FAILED_TITLE, error);
    let id = if let Some(sender) = sender {
        let tracked = &state.tracked_delivery;
        let sending = tracked.send(&connection, content, sender, ack_timeout);
        sending.await.map_err(|error| match error {
            TrackedSendError::Send(error) => send_error(error),
            TrackedSendError::Store(error) => error.into(),
            TrackedSendError::KeyInUse => in_progress_error(),
        })?
    } else {
        let sending = state.delivery.send(&connection, content, ack_timeout);
        sending.await.map_err(send_error)?
    };
    Ok((StatusCode::CREATED, Json(MessageAccepted { id })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn validate(body: Value) -> Result<MessageContent, ApiError> {
        serde_json::from_value::<MessageRequest>(body)
            .unwrap()
            .validate()
    }

    #[test]
    fn metadata_and_payload_may_be_absent_or_null() {
        for body in [
            json!({"directive": "x"}),
            json!({"directive": "x", "metadata": null, "payload": null}),
        ] {
            let content = validate(body).unwrap();
            assert_eq!(content.metadata, Value::Null);
            assert_eq!(content.payload, Value::Null);
        }
    }

    #[test]
    fn directive_is_required_and_metadata_values_must_be_strings() {
        for invalid in [
            json!({}),
            json!({"directive": ""}),
            json!({"directive": " \t"}),
            json!({"directive": "x", "metadata": {"a": 1}}),
            json!({"directive": "x", "metadata": ["a"]}),
            json!({"directive": "x", "metadata": "a"}),
        ] {
            assert!(validate(invalid.clone()).is_err(), "{invalid}");
        }
        assert!(validate(json!({"directive": "x", "metadata": {"a": "1"}})).is_ok());
    }
}
