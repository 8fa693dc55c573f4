//! The state that the database must contain for a client, according to the message-order rules of
//! the specification.
//!
//! Every acknowledged message must have taken effect. A client performs its next action only after
//! the broker has acknowledged all messages of the previous action. Therefore the expected state is
//! unambiguous. The only exception is `Action::SendStaleOnline`:
//! `SimulatedClient::send_stale_online` sends an additional message that removes the ambiguity.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

/// The content of an online message or handshake.
#[derive(Debug, Clone, PartialEq)]
pub struct Online {
    pub message_id: Option<String>,
    pub sent: Timestamp,
    /// Earliest possible receive time of the message. Set only if the client's clock is fast,
    /// because the connector then stores the receive time instead of `sent`.
    pub earliest_receive_time: Option<Timestamp>,
    pub facts: Value,
    pub dispatchers: Value,
    pub tags: Value,
}

/// The expected state of one client.
#[derive(Debug, Clone, Default)]
pub struct ExpectedState {
    /// The latest online message. The client may have disconnected after this message.
    pub latest_online: Option<Online>,
    pub is_connected: bool,
    /// Whether the state is uncertain, because a message is not acknowledged yet or the client is
    /// reconnecting.
    pub is_uncertain: bool,
    /// Topic and payload SHA-256 of each acknowledged message that must be stored as a dead letter.
    pub dead_letters: BTreeSet<(String, String)>,
}

impl ExpectedState {
    pub fn set_online(&mut self, online: Online) {
        self.latest_online = Some(online);
        self.is_connected = true;
    }

    pub fn set_offline(&mut self) {
        self.is_connected = false;
    }

    /// Returns the online message whose content must be in the client's row. `None` if the client
    /// must have no row.
    pub fn expected_row_content(&self) -> Option<&Online> {
        self.latest_online.as_ref().filter(|_| self.is_connected)
    }
}
