//! Topics and messages: decoding bytes into types and encoding types into bytes, without I/O.
//!
//! Each dialect has its own module. `topics` contains the topic names of both dialects.
//! `client_message` contains the decoded messages, which are the same types for both dialects. No
//! input makes a decoder panic, and a decoded message is never larger than a fixed multiple of its
//! input.

pub mod client_message;
pub mod handshake;
pub mod inbound;
mod json_fields;
pub mod rejection;
pub mod status;
pub mod topics;

pub use client_message::{ClientMessage, ClientResponse, HandshakeError, OnlineMessage};
pub use inbound::{InboundMessage, OriginalPayload};
pub use rejection::Rejection;
pub use topics::{Channel, ClientTopic, Direction, HandshakeTopicLevels, TopicScheme};

use serde_json::Value;
use uuid::Uuid;

use domain::{Dialect, OutgoingMessage, Timestamp};

/// Maximum size of a presence message. Real presence messages have a few kilobytes. A higher limit
/// would need more memory, because a decoded message is many times larger than its payload.
pub const MAX_PRESENCE_BYTES: usize = 128 * 1024;
/// Maximum size of a response. By default, neither the embedded broker nor the shipped Mosquitto
/// configuration accepts a larger message.
pub const MAX_RESPONSE_BYTES: usize = 1024 * 1024;

/// Decodes a message that a client published on this channel.
///
/// # Errors
/// [`Rejection`] if the message can never be processed.
pub fn decode(channel: Channel, message: &InboundMessage) -> Result<ClientMessage, Rejection> {
    let payload = &message.payload;
    if let Some(original) = &message.truncated_from {
        return Err(Rejection::payload_too_large(
            original.size_bytes,
            MAX_PRESENCE_BYTES,
        ));
    }
    match channel {
        Channel::Control(Direction::FromClient) => status::decode_control(payload),
        Channel::Data(Direction::FromClient) => status::decode_data(payload),
        Channel::Handshake(Direction::FromClient) | Channel::HandshakeStatus => {
            handshake::decode(payload)
        }
        Channel::Control(_) | Channel::Data(_) | Channel::Handshake(_) => {
            Err(Rejection::unknown_topic())
        }
    }
}

/// Returns whether a message is certainly a response or a heartbeat. Such a message never registers
/// a client.
///
/// Decodes at most the message type. Returns false if the message type cannot be decoded.
#[must_use]
pub fn is_response_or_heartbeat(channel: Channel, payload: &[u8]) -> bool {
    match channel {
        Channel::Data(_) => true,
        Channel::Handshake(_) | Channel::HandshakeStatus => handshake::is_response(payload),
        Channel::Control(_) => false,
    }
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

/// Encodes a message in the client's dialect. Returns the channel to publish on and the payload.
#[must_use]
pub fn encode_message(dialect: Dialect, message: &OutgoingMessage) -> (Channel, Vec<u8>) {
    match dialect {
        Dialect::Status => (
            Channel::Data(Direction::ToClient),
            status::encode_message(message),
        ),
        Dialect::Handshake => (
            Channel::Handshake(Direction::ToClient),
            handshake::encode_message(message),
        ),
    }
}

/// Encodes a command in the client's dialect. Returns the channel to publish on and the payload.
/// Returns `None` for a ping in the handshake dialect, because this dialect has no ping.
#[must_use]
pub fn encode_command(
    dialect: Dialect,
    command: &Command,
    message_id: Uuid,
    now: Timestamp,
) -> Option<(Channel, Vec<u8>)> {
    match dialect {
        Dialect::Status => Some((
            Channel::Control(Direction::ToClient),
            status::encode_command(command, message_id, now),
        )),
        Dialect::Handshake => {
            let payload = handshake::encode_command(command, message_id, now)?;
            Some((Channel::Handshake(Direction::ToClient), payload))
        }
    }
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
