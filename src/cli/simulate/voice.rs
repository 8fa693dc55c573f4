//! What a client says and how it takes what it hears, in either dialect. No I/O: one value says
//! what, the connection does it.

use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::args::Dialects;
use crate::domain::{ClientId, Kind, Reported, Timestamp};
use crate::protocol::handshake::client as handshake;
use crate::protocol::status::client as status;
use crate::protocol::{ClientTopic, Direction, Route, Topics, Words};

/// How long a client stays away whose handshake was refused.
const TRY_LATER: Duration = Duration::from_secs(30);
/// Of those that speak handshake, every this many is a proxy.
const PROXY_EVERY: u32 = 5;

/// A dialect and, in it, what the client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Voice {
    Status,
    Handshake(Kind),
}

/// Something to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Saying {
    pub route: Route,
    pub payload: Vec<u8>,
    pub how: How,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Acknowledged,
    Retained,
    /// QoS 0.
    Unacknowledged,
}

/// What hearing a message leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    Answer(Saying),
    /// Leave cleanly; come back after that, or never.
    Leave(Option<Duration>),
    /// The handshake was refused: leave, and come back after that.
    Refused(Duration),
    Nothing,
}

impl Voice {
    /// Of the client with this number.
    pub fn of(dialects: Dialects, number: u32) -> Self {
        let handshake = |nth: u32| {
            let is_proxy = nth % PROXY_EVERY == PROXY_EVERY - 1;
            Self::Handshake(if is_proxy { Kind::Proxy } else { Kind::Host })
        };
        match dialects {
            Dialects::Status => Self::Status,
            Dialects::Handshake => handshake(number),
            Dialects::Mixed if number.is_multiple_of(2) => Self::Status,
            Dialects::Mixed => handshake(number / 2),
        }
    }

    pub fn listens_on(self) -> &'static [Route] {
        match self {
            Self::Status => &[
                Route::Control(Direction::ToClient),
                Route::Data(Direction::ToClient),
            ],
            Self::Handshake(_) => &[Route::Handshake(Direction::ToClient)],
        }
    }

    /// Where it says that it is there.
    pub fn state_route(self) -> Route {
        match self {
            Self::Status => Route::Control(Direction::FromClient),
            Self::Handshake(_) => Route::State,
        }
    }

    pub fn will(self, now: Timestamp) -> Saying {
        match self {
            Self::Status => self.saying(status::offline(now), How::Acknowledged),
            Self::Handshake(_) => self.saying(handshake::offline(), How::Retained),
        }
    }

    /// What every client publishes at every connect, before all else.
    pub fn sign_of_life(self) -> Option<Saying> {
        (self == Self::Status).then(|| Saying {
            route: Route::Data(Direction::FromClient),
            payload: Vec::new(),
            how: How::Unacknowledged,
        })
    }

    /// "I am here, and this is what I am."
    pub fn online(self, now: Timestamp, reported: &Reported) -> Saying {
        match self {
            Self::Status => self.saying(status::online(now, reported), How::Acknowledged),
            Self::Handshake(kind) => {
                self.saying(handshake::handshake(now, kind, reported), How::Retained)
            }
        }
    }

    /// What is said before leaving because the process ends.
    pub fn farewell(self, now: Timestamp) -> Vec<Saying> {
        match self {
            Self::Status => vec![self.saying(status::offline(now), How::Acknowledged)],
            Self::Handshake(_) => vec![
                self.saying(handshake::offline(), How::Acknowledged),
                self.saying(Vec::new(), How::Retained),
            ],
        }
    }

    /// What is said before leaving because the service wants it: in the status dialect, nothing.
    pub fn parting(self, now: Timestamp) -> Vec<Saying> {
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

    fn saying(self, payload: Vec<u8>, how: How) -> Saying {
        Saying {
            route: self.state_route(),
            payload,
            how,
        }
    }
}

fn hear_status(payload: &[u8], now: Timestamp) -> Reaction {
    let answer = |route: fn(Direction) -> Route, payload| {
        Reaction::Answer(Saying {
            route: route(Direction::FromClient),
            payload,
            how: How::Acknowledged,
        })
    };
    match status::parse(payload) {
        Some(status::Heard::Command {
            message_id,
            command,
            delay_seconds,
        }) => match command.as_str() {
            "ping" => answer(Route::Control, status::pong(now, &message_id)),
            "reconnect" => Reaction::Leave(delay_seconds.map(Duration::from_secs)),
            "disconnect" => Reaction::Leave(None),
            _ => Reaction::Nothing,
        },
        Some(status::Heard::Data {
            message_id,
            directive,
            content,
        }) => answer(
            Route::Data,
            status::answer(now, &message_id, &directive, &content),
        ),
        None => Reaction::Nothing,
    }
}

fn hear_handshake(payload: &[u8], now: Timestamp) -> Reaction {
    match handshake::parse(payload) {
        Some(handshake::Heard::Message {
            message_id,
            directive,
            payload,
        }) => Reaction::Answer(Saying {
            route: Route::Handshake(Direction::FromClient),
            payload: handshake::answer(now, &message_id, &directive, &payload),
            how: How::Acknowledged,
        }),
        Some(handshake::Heard::ForceDisconnect { reconnect_after }) => {
            // A time that has passed is now.
            let delay =
                |at: Timestamp| Duration::try_from(at.duration_since(now)).unwrap_or_default();
            Reaction::Leave(reconnect_after.map(delay))
        }
        Some(handshake::Heard::HandshakeError { .. }) => Reaction::Refused(TRY_LATER),
        None => Reaction::Nothing,
    }
}

/// The names of one client's topics.
pub(super) struct Names {
    topics: Topics,
    prefix: String,
}

impl Names {
    pub fn new(prefix: &str, state_apart: bool) -> Self {
        let words = Words {
            state: state_apart.then(|| "status".to_owned()),
            ..Words::default()
        };
        Self {
            topics: Topics::new(Vec::new(), words),
            prefix: prefix.to_owned(),
        }
    }

    pub fn topic(&self, client: &ClientId, route: Route) -> String {
        self.topics.name(&ClientTopic {
            prefix: self.prefix.clone(),
            client: client.clone(),
            route,
        })
    }
}

/// What a client says of itself; after the first time with something that changed.
pub(super) fn reported(id: &ClientId) -> Reported {
    Reported {
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
pub(super) fn changed(mut reported: Reported, change: u64) -> Reported {
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
            assert_eq!(Voice::Status.hear(&wire, NOW), expected, "{command:?}");
            let wire = handshake_command(&command, Uuid::nil(), NOW).unwrap();
            let voice = Voice::Handshake(Kind::Host);
            assert_eq!(voice.hear(&wire, NOW), expected, "{command:?}");
        }
    }

    #[test]
    fn a_mixed_fleet_has_everything() {
        let voices: Vec<_> = (0..100).map(|n| Voice::of(Dialects::Mixed, n)).collect();
        let count = |voice| voices.iter().filter(|found| **found == voice).count();
        assert_eq!(count(Voice::Status), 50);
        assert_eq!(count(Voice::Handshake(Kind::Host)), 40);
        assert_eq!(count(Voice::Handshake(Kind::Proxy)), 10);
    }

    #[test]
    fn state_has_a_topic_of_its_own_where_that_is_wanted() {
        let me = ClientId::new("me").unwrap();
        assert_eq!(Names::new("p", false).topic(&me, Route::State), "p/in/me");
        assert_eq!(
            Names::new("p", true).topic(&me, Route::State),
            "p/status/me"
        );
    }

    #[test]
    fn a_handshake_is_retained_and_its_removal_ends_it() {
        let voice = Voice::Handshake(Kind::Host);
        let me = ClientId::new("me").unwrap();
        assert_eq!(voice.online(NOW, &reported(&me)).how, How::Retained);
        assert_eq!(voice.will(NOW).how, How::Retained);
        let last = voice.farewell(NOW).pop().unwrap();
        assert_eq!((last.payload.len(), last.how), (0, How::Retained));
    }
}
