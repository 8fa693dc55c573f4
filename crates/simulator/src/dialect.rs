//! The messages that a simulated client publishes, and its reactions to received messages. Both
//! depend on the dialect: status or handshake.
//!
//! This module does no I/O. The module `session` publishes the [`OutgoingMessage`]s, and the module
//! `client` executes the [`Reaction`]s.

use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::args::DialectMix;
use domain::{ClientId, ClientInfo, ClientKind, Timestamp};
use protocol::handshake::client_side as handshake;
use protocol::handshake::{FROM_CLIENT, STATUS_FROM_CLIENT, TO_CLIENT};
use protocol::status::client_side as status;
use protocol::status::{CONTROL_FROM_CLIENT, CONTROL_TO_CLIENT, DATA_FROM_CLIENT, DATA_TO_CLIENT};
use protocol::{Channel, ClientTopic, DialectSettings, HandshakeTopicLevels, TopicScheme};

/// Time until a client reconnects after it received a handshake-error message.
const HANDSHAKE_RETRY_DELAY: Duration = Duration::from_secs(30);
/// Every fifth handshake client is a proxy.
const HANDSHAKE_CLIENTS_PER_PROXY: u32 = 5;

/// Dialect of one client. A client of the handshake dialect is either a host or a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Status,
    Handshake(ClientKind),
}

/// A message to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OutgoingMessage {
    pub channel: Channel,
    pub payload: Vec<u8>,
    pub delivery: Delivery,
}

/// Quality of service and retain flag of a published message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    /// QoS 1, not retained.
    Acknowledged,
    /// QoS 1, retained.
    Retained,
    /// QoS 0, not retained.
    Unacknowledged,
}

/// What a client does after it received a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    Respond(OutgoingMessage),
    /// Disconnect cleanly, and reconnect after `reconnect_after`. If `reconnect_after` is `None`,
    /// do not reconnect.
    Disconnect {
        reconnect_after: Option<Duration>,
    },
    /// The service rejected the handshake. Disconnect, and send a new handshake after
    /// `retry_after`.
    RetryHandshake {
        retry_after: Duration,
    },
    Ignore,
}

impl Dialect {
    /// Returns the dialect of the client with this index in the fleet.
    pub fn for_client(mix: DialectMix, index: u32) -> Self {
        let handshake_dialect = |handshake_index: u32| {
            let is_proxy =
                handshake_index % HANDSHAKE_CLIENTS_PER_PROXY == HANDSHAKE_CLIENTS_PER_PROXY - 1;
            Self::Handshake(if is_proxy {
                ClientKind::Proxy
            } else {
                ClientKind::Host
            })
        };
        match mix {
            DialectMix::Status => Self::Status,
            DialectMix::Handshake => handshake_dialect(index),
            DialectMix::Mixed if index.is_multiple_of(2) => Self::Status,
            DialectMix::Mixed => handshake_dialect(index / 2),
        }
    }

    /// Returns the channels that the client subscribes to.
    pub fn subscriptions(self) -> &'static [Channel] {
        match self {
            Self::Status => &[CONTROL_TO_CLIENT, DATA_TO_CLIENT],
            Self::Handshake(_) => &[TO_CLIENT],
        }
    }

    /// Returns the channel for online, offline and handshake messages.
    pub fn presence_channel(self) -> Channel {
        match self {
            Self::Status => CONTROL_FROM_CLIENT,
            Self::Handshake(_) => STATUS_FROM_CLIENT,
        }
    }

    pub fn last_will(self, now: Timestamp) -> OutgoingMessage {
        match self {
            Self::Status => {
                self.presence_message(status::offline_message(now), Delivery::Acknowledged)
            }
            Self::Handshake(_) => {
                self.presence_message(handshake::offline_message(), Delivery::Retained)
            }
        }
    }

    /// Returns the heartbeat that status clients publish first on every connection. Handshake
    /// clients publish no heartbeat.
    pub fn heartbeat(self) -> Option<OutgoingMessage> {
        (self == Self::Status).then(|| OutgoingMessage {
            channel: DATA_FROM_CLIENT,
            payload: Vec::new(),
            delivery: Delivery::Unacknowledged,
        })
    }

    /// Returns the online message of a status client, or the handshake of a handshake client.
    pub fn online_message(self, now: Timestamp, info: &ClientInfo) -> OutgoingMessage {
        match self {
            Self::Status => {
                self.presence_message(status::online_message(now, info), Delivery::Acknowledged)
            }
            Self::Handshake(kind) => self.presence_message(
                handshake::handshake_message(now, kind, info),
                Delivery::Retained,
            ),
        }
    }

    /// Returns the messages that the client publishes before it disconnects at the end of the
    /// simulation. The empty retained message of a handshake client deletes its retained handshake.
    pub fn offline_messages(self, now: Timestamp) -> Vec<OutgoingMessage> {
        match self {
            Self::Status => {
                vec![self.presence_message(status::offline_message(now), Delivery::Acknowledged)]
            }
            Self::Handshake(_) => vec![
                self.presence_message(handshake::offline_message(), Delivery::Acknowledged),
                self.presence_message(Vec::new(), Delivery::Retained),
            ],
        }
    }

    /// Returns the messages that the client publishes before a disconnect that the service
    /// requested. Status clients publish no message in this case.
    pub fn messages_before_requested_disconnect(self, now: Timestamp) -> Vec<OutgoingMessage> {
        match self {
            Self::Status => Vec::new(),
            Self::Handshake(_) => self.offline_messages(now),
        }
    }

    pub fn reaction(self, payload: &[u8], now: Timestamp) -> Reaction {
        match self {
            Self::Status => status_reaction(payload, now),
            Self::Handshake(_) => handshake_reaction(payload, now),
        }
    }

    fn presence_message(self, payload: Vec<u8>, delivery: Delivery) -> OutgoingMessage {
        OutgoingMessage {
            channel: self.presence_channel(),
            payload,
            delivery,
        }
    }
}

fn status_reaction(payload: &[u8], now: Timestamp) -> Reaction {
    let respond = |channel: Channel, payload| {
        Reaction::Respond(OutgoingMessage {
            channel,
            payload,
            delivery: Delivery::Acknowledged,
        })
    };
    match status::decode(payload) {
        Some(status::ServerMessage::Command {
            message_id,
            command,
            delay_seconds,
        }) => match command.as_str() {
            "ping" => respond(CONTROL_FROM_CLIENT, status::pong_message(now, &message_id)),
            "reconnect" => Reaction::Disconnect {
                reconnect_after: delay_seconds.map(Duration::from_secs),
            },
            "disconnect" => Reaction::Disconnect {
                reconnect_after: None,
            },
            _ => Reaction::Ignore,
        },
        Some(status::ServerMessage::Data {
            message_id,
            directive,
            content,
        }) => respond(
            DATA_FROM_CLIENT,
            status::response_message(now, &message_id, &directive, &content),
        ),
        None => Reaction::Ignore,
    }
}

fn handshake_reaction(payload: &[u8], now: Timestamp) -> Reaction {
    match handshake::decode(payload) {
        Some(handshake::ServerMessage::Message {
            message_id,
            directive,
            payload,
        }) => Reaction::Respond(OutgoingMessage {
            channel: FROM_CLIENT,
            payload: handshake::response_message(now, &message_id, &directive, &payload),
            delivery: Delivery::Acknowledged,
        }),
        Some(handshake::ServerMessage::ForceDisconnect {
            reconnect_after: reconnect_at,
        }) => {
            // If the reconnect time is in the past, the client reconnects immediately.
            let delay_until =
                |time: Timestamp| Duration::try_from(time.duration_since(now)).unwrap_or_default();
            Reaction::Disconnect {
                reconnect_after: reconnect_at.map(delay_until),
            }
        }
        Some(handshake::ServerMessage::HandshakeError { .. }) => Reaction::RetryHandshake {
            retry_after: HANDSHAKE_RETRY_DELAY,
        },
        None => Reaction::Ignore,
    }
}

/// Builds topic names from a client id and a channel.
pub(super) struct TopicNames {
    scheme: TopicScheme,
    prefix: String,
    uses_status_topic: bool,
}

impl TopicNames {
    /// If `uses_status_topic` is true, handshake clients publish their presence messages to
    /// `PREFIX/status/ID`, otherwise to `PREFIX/in/ID`.
    pub fn new(prefix: &str, uses_status_topic: bool) -> Self {
        let settings = DialectSettings {
            handshake_topics: HandshakeTopicLevels {
                status_level: uses_status_topic.then(|| "status".to_owned()),
                ..HandshakeTopicLevels::default()
            },
        };
        Self {
            scheme: TopicScheme::new(Vec::new(), &settings),
            prefix: prefix.to_owned(),
            uses_status_topic,
        }
    }

    pub fn topic(&self, client: &ClientId, channel: Channel) -> String {
        let channel = if channel == STATUS_FROM_CLIENT && !self.uses_status_topic {
            FROM_CLIENT
        } else {
            channel
        };
        let topic_name = self.scheme.topic_name(&ClientTopic {
            prefix: self.prefix.clone(),
            client: client.clone(),
            channel,
        });
        topic_name.expect("the topic scheme contains all channels of both dialects")
    }
}

/// Returns the facts, dispatchers and tags of a simulated client. Two facts are random. All clients
/// have the same dispatchers and tags.
pub(super) fn new_client_info(client_id: &ClientId) -> ClientInfo {
    ClientInfo {
        canonical_facts: json!({
            "insights_id": Uuid::new_v4(),
            "machine_id": Uuid::new_v4(),
            "fqdn": format!("{client_id}.example.com"),
            "ip_addresses": ["192.0.2.1"],
            "mac_addresses": ["52:54:00:00:00:01"],
        }),
        catalog_service_facts: json!({"source_type": "simulated", "application_type": "simulated"}),
        dispatchers: json!({"echo": {}, "rhc-worker-playbook": {}}),
        tags: json!({"simulated": "true"}),
        client_name: "cloud-connector simulate".to_owned(),
        client_version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Returns a copy of `info` in which one tag and two facts have the value `change_number`.
pub(super) fn with_changed_tags_and_facts(mut info: ClientInfo, change_number: u64) -> ClientInfo {
    info.tags["change"] = json!(change_number.to_string());
    info.canonical_facts["change"] = json!(change_number.to_string());
    info.catalog_service_facts["change"] = json!(change_number.to_string());
    info
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Command;
    use protocol::handshake::encode_command as handshake_command;
    use protocol::status::encode_command as status_command;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn disconnect_reaction(reconnect_after: Option<Duration>) -> Reaction {
        Reaction::Disconnect { reconnect_after }
    }

    #[test]
    fn reconnect_and_disconnect_commands_disconnect_the_client_in_both_dialects() {
        let message = String::new();
        let reconnect = Command::Reconnect {
            delay_seconds: 60,
            message: message.clone(),
        };
        for (command, expected) in [
            (reconnect, disconnect_reaction(Some(Duration::from_mins(1)))),
            (Command::Disconnect { message }, disconnect_reaction(None)),
        ] {
            let payload = status_command(&command, Uuid::nil(), NOW);
            assert_eq!(
                Dialect::Status.reaction(&payload, NOW),
                expected,
                "{command:?}"
            );
            let payload = handshake_command(&command, Uuid::nil(), NOW).unwrap();
            let host = Dialect::Handshake(ClientKind::Host);
            assert_eq!(host.reaction(&payload, NOW), expected, "{command:?}");
        }
    }

    #[test]
    fn in_a_mixed_fleet_half_use_the_status_dialect_and_a_tenth_are_proxies() {
        let dialects: Vec<_> = (0..100)
            .map(|index| Dialect::for_client(DialectMix::Mixed, index))
            .collect();
        let count = |dialect| dialects.iter().filter(|each| **each == dialect).count();
        assert_eq!(count(Dialect::Status), 50);
        assert_eq!(count(Dialect::Handshake(ClientKind::Host)), 40);
        assert_eq!(count(Dialect::Handshake(ClientKind::Proxy)), 10);
    }

    #[test]
    fn handshake_clients_can_publish_to_the_status_topic_instead_of_the_in_topic() {
        let client = ClientId::new("c1").unwrap();
        let topic = |uses_status_topic| {
            TopicNames::new("p", uses_status_topic).topic(&client, STATUS_FROM_CLIENT)
        };
        assert_eq!(topic(false), "p/in/c1");
        assert_eq!(topic(true), "p/status/c1");
    }

    #[test]
    fn a_handshake_is_retained_and_going_offline_deletes_the_retained_message() {
        let host = Dialect::Handshake(ClientKind::Host);
        let info = new_client_info(&ClientId::new("c1").unwrap());
        assert_eq!(host.online_message(NOW, &info).delivery, Delivery::Retained);
        assert_eq!(host.last_will(NOW).delivery, Delivery::Retained);
        let last = host.offline_messages(NOW).pop().unwrap();
        assert_eq!((last.payload.len(), last.delivery), (0, Delivery::Retained));
    }
}
