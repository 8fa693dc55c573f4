//! What a service asks us to send to a client.

use serde_json::Value;
use uuid::Uuid;

use super::Timestamp;

/// A message on its way to a client, before it is put into the client's dialect.
#[derive(Debug, Clone, PartialEq)]
pub struct OutgoingMessage {
    /// Its id, which the caller is told and the client answers to.
    pub id: Uuid,
    /// When it was made.
    pub sent: Timestamp,
    /// What the receiving application goes by.
    pub directive: String,
    /// Null, or a map of string to string: a client drops anything else without a word.
    pub metadata: Value,
    /// The application's own; null when the caller gave none.
    pub payload: Value,
}
