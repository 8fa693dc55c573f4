//! What a client says and how it takes what it hears, in any_signal dialect. No I/O: one value says
//! what, the connection does it.

use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::args::Dialects;
use crate::domain::{ClientId, ClientInfo, ClientKind, Timestamp};
use crate::protocol::handshake::client_side as handshake;
use crate::protocol::status::client_side as status;
use crate::protocol::{Channel, ClientTopic, Direction, HandshakeSegments, TopicScheme};

/// Delivery long a client stays away whose handshake was refused.
const TRY_LATER: Duration = Duration::from_secs(30);
/// Of those that speak handshake, every this many is a proxy.
const PROXY_EVERY: u32 = 5;

/// A dialect and, in it, what the client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Status,
    Handshake(ClientKind),
}

/// Something to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outgoing {
    pub route: Channel,
    pub payload: Vec<u8>,
    pub how: Delivery,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    Acknowledged,
    Retained,
    /// QoS 0.
    Unacknowledged,
}

/// What hearing a message leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    Answer(Outgoing),
    /// Leave cleanly; come back after that, or never.
    Leave(Option<Duration>),
    /// The handshake was refused: leave, and come back after that.
    Refused(Duration),
    Nothing,
}

impl Dialect {
    /// Of the client with this number.
    pub fn of(dialects: Dialects, number: u32) -> Self {
        let handshake = |nth: u32| {
            let is_proxy = nth % PROXY_EVERY == PROXY_EVERY - 1;
            Self::Handshake(if is_proxy {
                ClientKind::Proxy
            } else {
                ClientKind::Host
            })
        };
        match dialects {
            Dialects::Status => Self::Status,
            Dialects::Handshake => handshake(number),
            Dialects::Mixed if number.is_multiple_of(2) => Self::Status,
            Dialects::Mixed => handshake(number / 2),
        }
    }

    pub fn listens_on(self) -> &'static [Channel] {
        match self {
            Self::Status => &[
                Channel::Control(Direction::ToClient),
                Channel::Data(Direction::ToClient),
            ],
            Self::Handshake(_) => &[Channel::Handshake(Direction::ToClient)],
        }
    }

    /// Where it says that it is there.
    pub fn state_route(self) -> Channel {
        match self {
            Self::Status => Channel::Control(Direction::FromClient),
            Self::Handshake(_) => Channel::State,
        }
    }

    pub fn will(self, now: Timestamp) -> Outgoing {
        match self {
            Self::Status => self.saying(status::offline(now), Delivery::Acknowledged),
            Self::Handshake(_) => self.saying(handshake::offline(), Delivery::Retained),
        }
    }

    /// What every client publishes at every connect, before all else.
    pub fn sign_of_life(self) -> Option<Outgoing> {
        (self == Self::Status).then(|| Outgoing {
            route: Channel::Data(Direction::FromClient),
            payload: Vec::new(),
            how: Delivery::Unacknowledged,
        })
    }

    /// "I am here, and this is what I am."
    pub fn online(self, now: Timestamp, reported: &ClientInfo) -> Outgoing {
        match self {
            Self::Status => self.saying(status::online(now, reported), Delivery::Acknowledged),
            Self::Handshake(kind) => self.saying(
                handshake::handshake(now, kind, reported),
                Delivery::Retained,
            ),
        }
    }

    /// What is said before leaving because the process ends.
    pub fn farewell(self, now: Timestamp) -> Vec<Outgoing> {
        match self {
            Self::Status => vec![self.saying(status::offline(now), Delivery::Acknowledged)],
            Self::Handshake(_) => vec![
                self.saying(handshake::offline(), Delivery::Acknowledged),
                self.saying(Vec::new(), Delivery::Retained),
            ],
        }
    }

    /// What is said before leaving because the service wants it: in the status dialect, nothing.
    pub fn parting(self, now: Timestamp) -> Vec<Outgoing> {
        match self {
            Self::Status => Vec::new(),
            Self::Handshake(_) => self.farewell(now),
        }
    }

    pub fn hear(self, payload: &[u8], now: Timestamp) -> Reaction {
        match self {
            Self::Status => hear_status(payload, now),
            Self::Handshake(_) => hear_handshake(payload, now),
        }
    }

    fn saying(self, payload: Vec<u8>, how: Delivery) -> Outgoing {
        Outgoing {
            route: self.state_route(),
            payload,
            how,
        }
    }
}

fn hear_status(payload: &[u8], now: Timestamp) -> Reaction {
    let answer = |route: fn(Direction) -> Channel, payload| {
        Reaction::Answer(Outgoing {
            route: route(Direction::FromClient),
            payload,
            how: Delivery::Acknowledged,
        })
    };
    match status::decode(payload) {
        Some(status::ServerMessage::Command {
            message_id,
            command,
            delay_seconds,
        }) => match command.as_str() {
            "ping" => answer(Channel::Control, status::pong(now, &message_id)),
            "reconnect" => Reaction::Leave(delay_seconds.map(Duration::from_secs)),
            "disconnect" => Reaction::Leave(None),
            _ => Reaction::Nothing,
        },
        Some(status::ServerMessage::Data {
            message_id,
            directive,
            content,
        }) => answer(
            Channel::Data,
            status::answer(now, &message_id, &directive, &content),
        ),
        None => Reaction::Nothing,
    }
}

fn hear_handshake(payload: &[u8], now: Timestamp) -> Reaction {
    match handshake::decode(payload) {
        Some(handshake::ServerMessage::Message {
            message_id,
            directive,
            payload,
        }) => Reaction::Answer(Outgoing {
            route: Channel::Handshake(Direction::FromClient),
            payload: handshake::answer(now, &message_id, &directive, &payload),
            how: Delivery::Acknowledged,
        }),
        Some(handshake::ServerMessage::ForceDisconnect { reconnect_after }) => {
            // A time that has passed is now.
            let delay =
                |at: Timestamp| Duration::try_from(at.duration_since(now)).unwrap_or_default();
            Reaction::Leave(reconnect_after.map(delay))
        }
        Some(handshake::ServerMessage::HandshakeError { .. }) => Reaction::Refused(TRY_LATER),
        None => Reaction::Nothing,
    }
}

/// The names of one client's topics.
pub(super) struct Names {
    topics: TopicScheme,
    prefix: String,
}

impl Names {
    pub fn new(prefix: &str, state_apart: bool) -> Self {
        let words = HandshakeSegments {
            state: state_apart.then(|| "status".to_owned()),
            ..HandshakeSegments::default()
        };
        Self {
            topics: TopicScheme::new(Vec::new(), words),
            prefix: prefix.to_owned(),
        }
    }

    pub fn topic(&self, client: &ClientId, route: Channel) -> String {
        self.topics.name(&ClientTopic {
            prefix: self.prefix.clone(),
            client: client.clone(),
            route,
        })
    }
}

/// What a client says of itself; after the first time with something that changed.
pub(super) fn reported(id: &ClientId) -> ClientInfo {
    ClientInfo {
        canonical_facts: json!({
            "insights_id": Uuid::new_v4(),
            "machine_id": Uuid::new_v4(),
            "fqdn": format!("{id}.example.com"),
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

/// The same client with something that changed.
pub(super) fn changed(mut reported: ClientInfo, change: u64) -> ClientInfo {
    reported.tags["change"] = json!(change.to_string());
    reported.canonical_facts["change"] = json!(change.to_string());
    reported.catalog_service_facts["change"] = json!(change.to_string());
    reported
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Command;
    use crate::protocol::handshake::encode_command as handshake_command;
    use crate::protocol::status::encode_command as status_command;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn commands() -> [(Command, Reaction); 2] {
        let message = String::new();
        let later = Command::Reconnect {
            delay_seconds: 60,
            message: message.clone(),
        };
        [
            (later, Reaction::Leave(Some(Duration::from_mins(1)))),
            (Command::Disconnect { message }, Reaction::Leave(None)),
        ]
    }

    #[test]
    fn commands_make_it_leave_in_either_dialect() {
        for (command, expected) in commands() {
            let wire = status_command(&command, Uuid::nil(), NOW);
            assert_eq!(Dialect::Status.hear(&wire, NOW), expected, "{command:?}");
            let wire = handshake_command(&command, Uuid::nil(), NOW).unwrap();
            let voice = Dialect::Handshake(ClientKind::Host);
            assert_eq!(voice.hear(&wire, NOW), expected, "{command:?}");
        }
    }

    #[test]
    fn a_mixed_fleet_has_everything() {
        let voices: Vec<_> = (0..100).map(|n| Dialect::of(Dialects::Mixed, n)).collect();
        let count = |voice| voices.iter().filter(|found| **found == voice).count();
        assert_eq!(count(Dialect::Status), 50);
        assert_eq!(count(Dialect::Handshake(ClientKind::Host)), 40);
        assert_eq!(count(Dialect::Handshake(ClientKind::Proxy)), 10);
    }

    #[test]
    fn state_has_a_topic_of_its_own_where_that_is_wanted() {
        let me = ClientId::new("me").unwrap();
        assert_eq!(Names::new("p", false).topic(&me, Channel::State), "p/in/me");
        assert_eq!(
            Names::new("p", true).topic(&me, Channel::State),
            "p/status/me"
        );
    }

    #[test]
    fn a_handshake_is_retained_and_its_removal_ends_it() {
        let voice = Dialect::Handshake(ClientKind::Host);
        let me = ClientId::new("me").unwrap();
        assert_eq!(voice.online(NOW, &reported(&me)).how, Delivery::Retained);
        assert_eq!(voice.will(NOW).how, Delivery::Retained);
        let last = voice.farewell(NOW).pop().unwrap();
        assert_eq!((last.payload.len(), last.how), (0, Delivery::Retained));
    }
}
