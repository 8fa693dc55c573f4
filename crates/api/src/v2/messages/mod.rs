//! Endpoints for tracked messages, and the JSON object of a message.

pub(super) mod cancel;
pub(super) mod find;
pub(super) mod list;

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::error::ApiError;
use domain::{MessageId, Timestamp};
use store::{AnswerContent, TrackedMessage};

/// OpenAPI description of the path parameter `id`.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only documents the parameter")]
struct MessageIdParam {
    /// Id of the message, from the response to the request that sent the message.
    id: Uuid,
}

/// Extractor of the path parameter `id`.
type MessageIdPath = Path<String>;

/// Returns the message id from the path. An invalid id is the id of no message.
fn message_id_from_path(path: Result<MessageIdPath, PathRejection>) -> Result<MessageId, ApiError> {
    let text = path.map(|Path(text)| text).unwrap_or_default();
    let id = Uuid::try_parse(&text).map_err(|_| no_message())?;
    Ok(MessageId::from(id))
}

/// Returns the 404 error for a message that is not stored, or that another organization has sent. Both
/// have the same error, so the error does not reveal the messages of other organizations.
fn no_message() -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        "Message not found",
        "The organization has no tracked message with this id",
    )
}

/// A tracked message. Fields without a value are omitted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Message)]
pub(super) struct MessageView {
    /// Id of the message.
    id: String,
    /// Client that receives the message.
    client_id: String,
    /// Name of the caller that sent the message: the name of its key, or the type of its identity.
    caller: String,
    directive: String,
    /// `queued`, `sending`, `acknowledged`, `answered`, `rejected`, `failed`, `expired` or
    /// `cancelled`.
    state: &'static str,
    /// Why the message failed: `broker-unavailable`, `broker-timeout` or `not-connected`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
    /// Bulk that the message belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    bulk_id: Option<String>,
    #[schema(format = DateTime)]
    created_at: String,
    /// Time at which the message was first passed to the connection to the broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, nullable = false)]
    sent_at: Option<String>,
    /// Time at which the broker acknowledged the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, nullable = false)]
    acknowledged_at: Option<String>,
    /// Receive time of the first answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, nullable = false)]
    answered_at: Option<String>,
    /// Time at which the message failed, expired or was cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, nullable = false)]
    ended_at: Option<String>,
    /// Time at which a queued message expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, nullable = false)]
    expires_at: Option<String>,
    /// Number of times that the message was passed to the connection to the broker.
    attempts: u64,
    /// Whether a process ended while it sent the message. The client can have received the message
    /// although it failed, or more than once.
    may_be_duplicate: bool,
    /// Number of answers of the client. Only the first answer is stored.
    answer_count: u64,
    /// Content of the first answer: any JSON value. If `answer_truncated` is true, the first 64 KiB of its
    /// JSON text. Lists omit the answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    answer: Option<Value>,
    /// Whether the content of the answer exceeds 64 KiB of JSON text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    answer_truncated: Option<bool>,
}

impl From<TrackedMessage> for MessageView {
    fn from(message: TrackedMessage) -> Self {
        let text = |time: Option<Timestamp>| time.map(|time| time.to_string());
        let answer_truncated = message.answer.as_ref().map(|answer| answer.is_truncated);
        Self {
            id: message.id.to_string(),
            client_id: message.client_id.to_string(),
            caller: message.caller,
            directive: message.directive,
            state: message.state.as_str(),
            reason: message.reason,
            bulk_id: message.bulk_id,
            created_at: message.created_at.to_string(),
            sent_at: text(message.sent_at),
            acknowledged_at: text(message.acknowledged_at),
            answered_at: text(message.answered_at),
            ended_at: text(message.ended_at),
            expires_at: text(message.expires_at),
            attempts: message.attempts,
            may_be_duplicate: message.may_be_duplicate,
            answer_count: message.answer_count,
            answer: message.answer.map(answer_value),
            answer_truncated,
        }
    }
}

/// Returns the content of an answer. A truncated text is not valid JSON, so it becomes a string.
fn answer_value(answer: AnswerContent) -> Value {
    if answer.is_truncated {
        return Value::String(answer.json);
    }
    serde_json::from_str(&answer.json).unwrap_or(Value::String(answer.json))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn truncated_answer_is_a_string() {
        let value = |json: &str, is_truncated| {
            answer_value(AnswerContent {
                json: json.to_owned(),
                is_truncated,
            })
        };
        assert_eq!(value(r#"{"a":1}"#, false), json!({"a": 1}));
        assert_eq!(value(r#"{"a":1"#, true), json!(r#"{"a":1"#));
        assert_eq!(value("12", true), json!("12"));
    }
}
