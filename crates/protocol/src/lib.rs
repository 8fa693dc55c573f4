//! Topics and messages: decoding bytes into types and encoding types into bytes, without I/O.
//!
//! Each dialect has its own folder with an implementation of the trait [`Dialect`]. `registry` lists
//! the dialects. `topics` contains the topic names of all dialects. `client_message` contains the
//! decoded messages, which are the same types for all dialects. No input makes a decoder panic, and
//! a decoded message is never larger than a fixed multiple of its input.

pub mod channel;
pub mod client_message;
pub mod dialect;
pub mod handshake;
pub mod inbound;
mod json_fields;
pub mod registry;
pub mod rejection;
mod response_content;
pub mod status;
pub mod topics;

pub use channel::{Channel, Direction};
pub use client_message::{ClientMessage, ClientResponse, HandshakeError, OnlineMessage};
pub use dialect::{Dialect, EncodedMessage};
pub use handshake::HandshakeTopicLevels;
pub use inbound::{InboundMessage, OriginalPayload, PayloadTruncator, TRUNCATED_PAYLOAD_BYTES};
pub use registry::{DIALECTS, DialectSettings, find_dialect};
pub use rejection::Rejection;
pub use response_content::ResponseContent;
pub use topics::{ChannelTopic, ClientTopic, TopicScheme};

use serde_json::Value;

/// Maximum size of a presence message. Real presence messages have a few kilobytes. A higher limit
/// would need more memory, because a decoded message is many times larger than its payload.
pub const MAX_PRESENCE_BYTES: usize = 128 * 1024;
/// Maximum size of a response. An application on a client may return the content of a message in its
/// response. The content has up to 1 MiB by default (`http.max_body_bytes`). As the text of a JSON
/// string, it has up to twice this size, because quotation marks are escaped. The other fields of the
/// response need less than 64 KiB.
pub const MAX_RESPONSE_BYTES: usize = 2 * 1024 * 1024 + 64 * 1024;

/// Decodes a message that a client published on this channel.
///
/// # Errors
/// [`Rejection`] if the message can never be processed.
pub fn decode(channel: Channel, message: &InboundMessage) -> Result<ClientMessage, Rejection> {
    let payload = &message.payload;
    if let Some(original) = &message.truncated_from {
        return Err(Rejection::payload_too_large(
            original.size_bytes,
            max_payload_bytes(channel, payload),
        ));
    }
    if channel.direction() != Direction::FromClient {
        return Err(Rejection::unknown_topic());
    }
    check_payload_size(channel, payload)?;
    channel.dialect().decode(channel, payload)
}

/// Checks the size before the payload is parsed, because parsing needs memory.
fn check_payload_size(channel: Channel, payload: &[u8]) -> Result<(), Rejection> {
    if payload.len() <= MAX_PRESENCE_BYTES {
        return Ok(());
    }
    let max_bytes = max_payload_bytes(channel, payload);
    if payload.len() > max_bytes {
        let size_bytes = payload.len() as u64;
        return Err(Rejection::payload_too_large(size_bytes, max_bytes));
    }
    Ok(())
}

/// Returns the maximum size of a message. `payload` is the payload of the message, or its start.
fn max_payload_bytes(channel: Channel, payload: &[u8]) -> usize {
    if is_response_or_heartbeat(channel, payload) {
        MAX_RESPONSE_BYTES
    } else {
        MAX_PRESENCE_BYTES
    }
}

/// Returns whether a message is certainly a response or a heartbeat. Such a message never registers
/// a client.
///
/// Decodes at most the message type. Returns false if the message type cannot be decoded.
#[must_use]
pub fn is_response_or_heartbeat(channel: Channel, payload: &[u8]) -> bool {
    channel.dialect().is_response_or_heartbeat(channel, payload)
}

/// Returns the content of a response for the caller, with at most `max_bytes` of JSON text. Call this
/// function only for the payload of a [`ClientMessage::Response`].
#[must_use]
pub fn response_content(channel: Channel, payload: &[u8], max_bytes: usize) -> ResponseContent {
    let field_name = channel.dialect().response_content_field();
    response_content::read(payload, field_name, max_bytes)
}

/// A command from the service about the client's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// The client must respond with a pong.
    Ping,
    /// The client must disconnect, and reconnect after a delay.
    Reconnect {
        /// Seconds to wait before reconnecting.
        delay_seconds: u64,
        /// Human-readable reason for the command. May be empty.
        message: String,
    },
    /// The client must disconnect and not reconnect.
    Disconnect {
        /// Human-readable reason for the command. May be empty.
        message: String,
    },
}

/// Serializes a message as JSON. Cannot fail, because messages contain only strings, numbers and
/// JSON values.
fn to_bytes(message: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(message).unwrap_or_default()
}

/// Returns whether clients accept this metadata. Clients accept null or a map of string to string,
/// and silently drop a message with any other metadata.
#[must_use]
pub fn is_valid_metadata(metadata: &Value) -> bool {
    match metadata {
        Value::Null => true,
        Value::Object(map) => map.values().all(Value::is_string),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use domain::{RejectReason, Timestamp};

    fn decode_payload(channel: Channel, payload: &str) -> Result<ClientMessage, RejectReason> {
        let message = InboundMessage {
            topic: "t".into(),
            payload: Bytes::from(payload.to_owned()),
            retained: false,
            is_operator_replay: false,
            is_last_will: None,
            is_takeover: false,
            received_at: Timestamp::UNIX_EPOCH,
            ingest_stamp: None,
            truncated_from: None,
        };
        decode(channel, &message).map_err(|rejection| rejection.reason)
    }

    #[test]
    fn responses_may_be_larger_than_presence_messages() {
        let message = |message_type: &str, size: usize| {
            let text = format!(r#"{{"type":"{message_type}"}}"#);
            let padding = " ".repeat(size - text.len());
            text + &padding
        };
        let too_large = Err(RejectReason::PayloadTooLarge);
        for (channel, message_type, max_bytes) in [
            (status::CONTROL_FROM_CLIENT, "x", MAX_PRESENCE_BYTES),
            (status::DATA_FROM_CLIENT, "data", MAX_RESPONSE_BYTES),
            (handshake::FROM_CLIENT, "offline", MAX_PRESENCE_BYTES),
            (handshake::FROM_CLIENT, "message", MAX_RESPONSE_BYTES),
            (handshake::STATUS_FROM_CLIENT, "offline", MAX_PRESENCE_BYTES),
        ] {
            let largest = decode_payload(channel, &message(message_type, max_bytes));
            assert!(largest.is_ok(), "{channel:?} {message_type}: {largest:?}");
            let larger = decode_payload(channel, &message(message_type, max_bytes + 1));
            assert_eq!(larger, too_large, "{channel:?} {message_type}");
        }
    }

    #[test]
    fn messages_on_channels_to_clients_are_rejected() {
        for channel in [
            status::CONTROL_TO_CLIENT,
            status::DATA_TO_CLIENT,
            handshake::TO_CLIENT,
        ] {
            let result = decode_payload(channel, r#"{"type":"offline"}"#);
            assert_eq!(result, Err(RejectReason::UnknownTopic), "{channel:?}");
        }
    }
}
