//! A message as the broker handed it over, and why one cannot be used.

use bytes::Bytes;

use crate::domain::Timestamp;

/// A message as it came: not parsed, so that taking it in cannot fail.
#[derive(Debug, Clone)]
pub struct Received {
    /// The topic it was published on; names the sender.
    pub topic: String,
    /// Its bytes.
    pub payload: Bytes,
    /// The MQTT retain flag: from an outside broker, that it is a replay of a retained message.
    pub retain: bool,
    /// When the broker had it.
    pub received: Timestamp,
}

/// Why a message can never be processed. The reason is one of few words, because it is a metric's
/// label; the detail is for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Rejected {
    /// One of a fixed set of words.
    pub reason: &'static str,
    /// What exactly was wrong. Never the payload itself.
    pub detail: String,
}

impl Rejected {
    /// A rejection for that reason.
    #[must_use]
    pub fn new(reason: &'static str, detail: impl Into<String>) -> Self {
        Self {
            reason,
            detail: detail.into(),
        }
    }
}
