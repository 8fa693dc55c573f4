//! The error type of message decoding.

use domain::RejectReason;

/// Why a message can never be processed. The message becomes a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Rejection {
    /// The category of the problem.
    pub reason: RejectReason,
    /// Description of the problem, for operators and the client. Never contains the payload.
    pub detail: String,
}

impl Rejection {
    /// Creates a rejection.
    #[must_use]
    pub fn new(reason: RejectReason, detail: impl Into<String>) -> Self {
        Self {
            reason,
            detail: detail.into(),
        }
    }

    /// Creates the rejection of a message with a missing or malformed field.
    #[must_use]
    pub fn invalid_schema(detail: impl Into<String>) -> Self {
        Self::new(RejectReason::InvalidSchema, detail)
    }

    /// Creates the rejection of a message on a topic that no client publishes to.
    #[must_use]
    pub fn unknown_topic() -> Self {
        Self::new(
            RejectReason::UnknownTopic,
            "no client publishes to this topic",
        )
    }

    /// Creates the rejection of a message whose payload exceeds the size limit.
    #[must_use]
    pub fn payload_too_large(size_bytes: u64, max_bytes: usize) -> Self {
        Self::new(
            RejectReason::PayloadTooLarge,
            format!("the payload has {size_bytes} bytes; the limit is {max_bytes}"),
        )
    }
}
