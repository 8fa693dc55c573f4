//! Messages from API callers to clients.

use serde_json::Value;
use uuid::Uuid;

use super::Timestamp;

/// A message to a client, before it is encoded in the client's dialect.
#[derive(Debug, Clone, PartialEq)]
pub struct OutgoingMessage {
    /// The message id, which the API returns to the caller and the client's response refers to.
    pub id: Uuid,
    /// When the service created the message.
    pub sent: Timestamp,
    /// Names the application on the client that receives the message, for example `rhc:work`.
    pub directive: String,
    /// Null or a map of string to string. Clients silently drop a message with any other metadata.
    pub metadata: Value,
    /// The application's payload; null if the caller sent none.
    pub payload: Value,
}
