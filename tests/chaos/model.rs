//! The state that the database must contain for a client, according to the message-order rules of
//! the specification.
//!
//! Every acknowledged message must have taken effect. A client sends its next message only after
//! the previous one is acknowledged, so the expected state is unambiguous. The one exception is
//! `Action::SendStaleOnline`: there the client itself removes the ambiguity (see `clients.rs`).

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

/// The content of an online message or handshake.
#[derive(Debug, Clone, PartialEq)]
pub struct Online {
    pub message_id: Option<String>,
    pub sent: Timestamp,
    /// Set if the client's clock is fast. The connector then stores the time of receipt, which must
    /// be after this time, instead of `sent`.
    pub received_after: Option<Timestamp>,
    pub facts: Value,
    pub dispatchers: Value,
    pub tags: Value,
}

/// The expected state of one client.
#[derive(Debug, Clone, Default)]
pub struct ExpectedState {
    /// The latest online message, even if the client has disconnected since.
    pub online: Option<Online>,
    pub is_connected: bool,
    /// Whether the state is uncertain, because a message is not acknowledged yet or the client is
    /// reconnecting.
    pub is_pending: bool,
    /// Topic and SHA-256 of each acknowledged message that must be stored as a dead letter.
    pub dead_letters: BTreeSet<(String, String)>,
}

impl ExpectedState {
    pub fn set_online(&mut self, online: Online) {
        self.online = Some(online);
        self.is_connected = true;
    }

    pub fn set_offline(&mut self) {
        self.is_connected = false;
    }

    /// Returns the message that the client's row must reflect, or `None` if it must have no row.
    pub fn row(&self) -> Option<&Online> {
        self.online.as_ref().filter(|_| self.is_connected)
    }
}
