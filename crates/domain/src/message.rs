//! Messages from API callers to clients.

use serde_json::Value;
use uuid::Uuid;

use super::Timestamp;

/// A message to a client, before it is encoded in the client's dialect.
#[derive(Debug, Clone, PartialEq)]
pub struct OutgoingMessage {
    /// The message id. The API returns the id to the caller, and the client's response contains the
    /// id.
    pub message_id: Uuid,
    /// When the service created the message.
    pub sent: Timestamp,
    /// Name of the application on the client that receives the message, for example `rhc:work`.
    pub directive: String,
    /// The metadata: null, or a map of string to string. Clients silently drop a message with any
    /// other metadata.
    pub metadata: Value,
    /// The payload for the application. Null if the caller sent no payload.
    pub payload: Value,
}
