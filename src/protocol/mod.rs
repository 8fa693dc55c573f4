//! Topics and messages: bytes ↔ types, no I/O.
//!
//! Everything here is total: no input makes it panic, and what it keeps is bounded by the size of
//! the input. A dialect has a folder of its own; the topics of both are in `topics`; what a client
//! can say in either is in `said`.

mod fields;
pub mod handshake;
pub mod received;
pub mod said;
pub mod status;
pub mod topics;

pub use received::{Cut, Received, Rejected};
pub use said::{Answer, Online, Refusal, Said};
pub use topics::{ClientTopic, Direction, Route, Topics, Words};

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
/// [`Rejected`] when it can never be processed.
pub fn read(route: Route, message: &Received) -> Result<Said, Rejected> {
    let payload = &message.payload;
    if let Some(cut) = &message.cut {
        return Err(Rejected::too_large(cut.size, PRESENCE_MAX_BYTES));
    }
    match route {
        Route::Control(Direction::FromClient) => status::read_control(payload),
        Route::Data(Direction::FromClient) => status::read_data(payload),
        Route::Handshake(Direction::FromClient) | Route::State => handshake::read(payload),
        Route::Control(_) | Route::Data(_) | Route::Handshake(_) => Err(Rejected::unknown_topic()),
    }
}

/// Whether a message can only be an answer or a sign of life, so that it never registers anybody.
/// A guess at its type, without reading all of it: what cannot be told is presence.
#[must_use]
pub fn is_answer(route: Route, payload: &[u8]) -> bool {
    match route {
        Route::Data(_) => true,
        Route::Handshake(_) | Route::State => handshake::is_answer(payload),
        Route::Control(_) => false,
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
pub fn encode_message(dialect: Dialect, message: &OutgoingMessage) -> (Route, Vec<u8>) {
    match dialect {
        Dialect::Status => (
            Route::Data(Direction::ToClient),
            status::encode_message(message),
        ),
        Dialect::Handshake => (
            Route::Handshake(Direction::ToClient),
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
) -> Option<(Route, Vec<u8>)> {
    match dialect {
        Dialect::Status => Some((
            Route::Control(Direction::ToClient),
            status::encode_command(command, id, now),
        )),
        Dialect::Handshake => {
            let bytes = handshake::encode_command(command, id, now)?;
            Some((Route::Handshake(Direction::ToClient), bytes))
        }
    }
}

/// Serialising strings, numbers and JSON values into memory has nothing to fail at.
fn to_bytes(message: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(message).unwrap_or_default()
}

/// Whether metadata is what clients take: null, or a map of string to string. They drop a message
/// with anything else without a word.
#[must_use]
pub fn is_metadata(metadata: &Value) -> bool {
    match metadata {
        Value::Null => true,
        Value::Object(map) => map.values().all(Value::is_string),
        _ => false,
    }
}
