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

use crate::dialect::Effect;
use crate::event_model::PresenceStep;

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

impl Online {
    /// Returns the revision of the content.
    pub fn revision(&self) -> u64 {
        let revision = self.facts["revision"].as_u64();
        revision.expect("every online message has a revision")
    }
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
    /// What may have changed the presence of the client since the last check of its events.
    pub steps: Vec<PresenceStep>,
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

    /// Adds what a message can change. `certain_offline` is whether an acknowledged offline message ends
    /// the connection in any case.
    pub fn add_message_step(
        &mut self,
        effect: &Effect,
        is_acknowledged: bool,
        certain_offline: bool,
    ) {
        self.steps.push(match effect {
            Effect::Online(online) => PresenceStep::Online {
                revision: online.revision(),
                is_certain: is_acknowledged,
            },
            Effect::OutdatedOnline { revision } => PresenceStep::Online {
                revision: *revision,
                is_certain: false,
            },
            Effect::Offline => PresenceStep::Offline {
                is_certain: is_acknowledged && certain_offline,
            },
            Effect::Heartbeat => PresenceStep::Heartbeat,
            Effect::DeadLetter | Effect::None => return,
        });
    }

    /// Adds the end of a connection, after which the broker may publish the last will.
    pub fn add_connection_end(&mut self) {
        let step = PresenceStep::Offline { is_certain: false };
        if self.steps.last() != Some(&step) {
            self.steps.push(step);
        }
    }
}
