//! TopicScheme and messages: bytes ↔ types, no I/O.
//!
//! Everything here is total: no input makes it panic, and what it keeps is bounded by the size of
//! the input. A dialect has a folder of its own; the topics of both are in `topics`; what a client
//! can say in either is in `said`.

pub mod client_message;
pub mod handshake;
pub mod inbound;
mod json_fields;
pub mod status;
pub mod topics;

pub use client_message::{ClientMessage, ClientResponse, HandshakeError, Online};
pub use inbound::{InboundMessage, Rejection, Truncated};
pub use topics::{Channel, ClientTopic, Direction, HandshakeSegments, TopicScheme};

use serde_json::Value;
use uuid::Uuid;

use crate::domain::{Dialect, OutgoingMessage, Timestamp};

/// Largest message that changes who is connected. Real ones are a few kilobytes; a parsed one
/// takes many times its size.
pub const PRESENCE_MAX_BYTES: usize = 128 * 1024;
/// Largest answer of an application. No broker that we ship a configuration for lets more through.
pub const ANSWER_MAX_BYTES: usize = 1024 * 1024;

/// Reads what a client said on one of its topics.
///
/// # Errors
/// [`Rejection`] when it can never be processed.
pub fn read(route: Channel, message: &InboundMessage) -> Result<ClientMessage, Rejection> {
    let payload = &message.payload;
    if let Some(cut) = &message.cut {
        return Err(Rejection::too_large(cut.size, PRESENCE_MAX_BYTES));
    }
    match route {
        Channel::Control(Direction::FromClient) => status::decode_control(payload),
        Channel::Data(Direction::FromClient) => status::decode_data(payload),
        Channel::Handshake(Direction::FromClient) | Channel::State => handshake::read(payload),
        Channel::Control(_) | Channel::Data(_) | Channel::Handshake(_) => {
            Err(Rejection::unknown_topic())
        }
    }
}

/// Whether a message can only be an answer or a sign of life, so that it never registers anybody.
/// A guess at its type, without reading all of it: what cannot be told is presence.
#[must_use]
pub fn is_response(route: Channel, payload: &[u8]) -> bool {
    match route {
        Channel::Data(_) => true,
        Channel::Handshake(_) | Channel::State => handshake::is_response(payload),
        Channel::Control(_) => false,
    }
}

/// What the service asks a client to do with its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Say that you are there.
    Ping,
    /// Leave, and come back after so many seconds.
    Reconnect {
        /// How long to stay away.
        delay_seconds: u64,
        /// Why, for people.
        message: String,
    },
    /// Leave, and stay away.
    Disconnect {
        /// Why, for people.
        message: String,
    },
}

/// The route and the bytes of a message to a client, in its dialect.
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

/// The route and the bytes of a command to a client, in its dialect. None where the dialect has no
/// such thing: the handshake dialect has no ping of its own.
#[must_use]
pub fn encode_command(
    dialect: Dialect,
    command: &Command,
    id: Uuid,
    now: Timestamp,
) -> Option<(Channel, Vec<u8>)> {
    match dialect {
        Dialect::Status => Some((
            Channel::Control(Direction::ToClient),
            status::encode_command(command, id, now),
        )),
        Dialect::Handshake => {
            let bytes = handshake::encode_command(command, id, now)?;
            Some((Channel::Handshake(Direction::ToClient), bytes))
        }
    }
}

/// Serialising strings, numbers and JSON values into memory has nothing to fail at.
fn to_bytes(message: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(message).unwrap_or_default()
}

/// Whether metadata is what clients take: null, or a map of string to string. They drop a message
/// with anything else without a short_text.
#[must_use]
pub fn is_valid_metadata(metadata: &Value) -> bool {
    match metadata {
        Value::Null => true,
        Value::Object(map) => map.values().all(Value::is_string),
        _ => false,
    }
}
