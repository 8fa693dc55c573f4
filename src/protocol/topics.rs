//! Topic names. The topic is the only thing that names a client, so this is where a client's reach
//! is decided: what does not parse here is nobody's.

use crate::domain::{ClientId, Dialect};

/// Which way a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the client.
    ToClient,
    /// From the client.
    FromClient,
}

/// Which of a client's topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Status dialect: presence and commands.
    Control(Direction),
    /// Status dialect: messages of applications.
    Data(Direction),
    /// Handshake dialect: everything.
    Handshake(Direction),
    /// Handshake dialect: connection state from the client, where that has a topic of its own.
    State,
}

impl Route {
    /// Which way.
    #[must_use]
    pub fn direction(self) -> Direction {
        match self {
            Self::Control(direction) | Self::Data(direction) | Self::Handshake(direction) => {
                direction
            }
            Self::State => Direction::FromClient,
        }
    }

    /// Whose words are spoken there.
    #[must_use]
    pub fn dialect(self) -> Dialect {
        match self {
            Self::Control(_) | Self::Data(_) => Dialect::Status,
            Self::Handshake(_) | Self::State => Dialect::Handshake,
        }
    }

    /// Its name as a metric's label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Control(_) => "control",
            Self::Data(_) => "data",
            Self::Handshake(_) => "handshake",
            Self::State => "state",
        }
    }
}

/// A topic of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTopic {
    /// The prefix that it was heard under.
    pub prefix: String,
    /// Whose it is.
    pub client: ClientId,
    /// Which one.
    pub route: Route,
}

/// The handshake dialect's words in topics; a deployment may have its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Words {
    /// What clients publish on.
    pub to_service: String,
    /// What clients listen on.
    pub to_client: String,
    /// What clients publish connection state on, if that has a topic of its own.
    pub state: Option<String>,
}

impl Default for Words {
    fn default() -> Self {
        Self {
            to_service: "in".to_owned(),
            to_client: "out".to_owned(),
            state: None,
        }
    }
}

/// The topics of a deployment: the prefixes that it listens on, and its words.
#[derive(Debug, Clone)]
pub struct Topics {
    prefixes: Vec<String>,
    words: Words,
}

impl Topics {
    /// Topics under these prefixes (checked by `config`: no wildcard, no empty level at the ends).
    #[must_use]
    pub fn new(prefixes: Vec<String>, words: Words) -> Self {
        Self { prefixes, words }
    }

    /// Whose topic this is, or none if it is not a client's.
    ///
    /// A filter with a wildcard is not a topic of any client: a client id can hold none and every
    /// other level is a fixed word.
    #[must_use]
    pub fn parse(&self, topic: &str) -> Option<ClientTopic> {
        self.prefixes.iter().find_map(|prefix| {
            let rest = topic.strip_prefix(prefix.as_str())?.strip_prefix('/')?;
            let mut levels = rest.split('/');
            let first = levels.next()?;
            let second = levels.next()?;
            let third = levels.next();
            if levels.next().is_some() {
                return None;
            }
            let (client, route) = match third {
                Some(third) => (first, status_route(second, third)?),
                None => (second, self.handshake_route(first)?),
            };
            Some(ClientTopic {
                prefix: prefix.clone(),
                client: ClientId::new(client).ok()?,
                route,
            })
        })
    }

    fn handshake_route(&self, word: &str) -> Option<Route> {
        let words = &self.words;
        if word == words.to_service {
            Some(Route::Handshake(Direction::FromClient))
        } else if word == words.to_client {
            Some(Route::Handshake(Direction::ToClient))
        } else if words.state.as_deref() == Some(word) {
            Some(Route::State)
        } else {
            None
        }
    }

    /// The topic's name on the wire.
    #[must_use]
    pub fn name(&self, topic: &ClientTopic) -> String {
        let ClientTopic { prefix, client, .. } = topic;
        let words = &self.words;
        let status = |channel: &str, direction| match direction {
            Direction::ToClient => format!("{prefix}/{client}/{channel}/in"),
            Direction::FromClient => format!("{prefix}/{client}/{channel}/out"),
        };
        match topic.route {
            Route::Control(direction) => status("control", direction),
            Route::Data(direction) => status("data", direction),
            Route::Handshake(Direction::FromClient) => {
                format!("{prefix}/{}/{client}", words.to_service)
            }
            Route::Handshake(Direction::ToClient) => {
                format!("{prefix}/{}/{client}", words.to_client)
            }
            Route::State => {
                let word = words.state.as_deref().unwrap_or(&words.to_service);
                format!("{prefix}/{word}/{client}")
            }
        }
    }

    /// What the service subscribes to.
    #[must_use]
    pub fn filters(&self) -> Vec<String> {
        let mut filters = Vec::new();
        for prefix in &self.prefixes {
            filters.push(format!("{prefix}/+/control/out"));
            filters.push(format!("{prefix}/+/data/out"));
            filters.push(format!("{prefix}/{}/+", self.words.to_service));
            if let Some(word) = &self.words.state {
                filters.push(format!("{prefix}/{word}/+"));
            }
        }
        filters
    }

    /// Whether this client may publish there: its own topics from the client.
    #[must_use]
    pub fn may_publish(&self, client: &ClientId, topic: &str) -> bool {
        self.is_own(client, topic, Direction::FromClient)
    }

    /// Whether this client may subscribe to that: its own topics to the client, each by its full
    /// name.
    #[must_use]
    pub fn may_subscribe(&self, client: &ClientId, filter: &str) -> bool {
        self.is_own(client, filter, Direction::ToClient)
    }

    fn is_own(&self, client: &ClientId, topic: &str, direction: Direction) -> bool {
        self.parse(topic)
            .is_some_and(|own| own.client == *client && own.route.direction() == direction)
    }
}

fn status_route(channel: &str, direction: &str) -> Option<Route> {
    let direction = match direction {
        "in" => Direction::ToClient,
        "out" => Direction::FromClient,
        _ => return None,
    };
    match channel {
        "control" => Some(Route::Control(direction)),
        "data" => Some(Route::Data(direction)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topics() -> Topics {
        let words = Words {
            state: Some("status".into()),
            ..Words::default()
        };
        Topics::new(vec!["redhat/insights".into(), "qa/insights".into()], words)
    }

    fn client(name: &str) -> ClientId {
        ClientId::new(name).unwrap()
    }

    #[test]
    fn every_topic_of_a_client_has_one_name_and_is_read_back_from_it() {
        for (name, route) in [
            (
                "redhat/insights/me/control/out",
                Route::Control(Direction::FromClient),
            ),
            (
                "qa/insights/me/control/in",
                Route::Control(Direction::ToClient),
            ),
            (
                "redhat/insights/me/data/out",
                Route::Data(Direction::FromClient),
            ),
            (
                "redhat/insights/me/data/in",
                Route::Data(Direction::ToClient),
            ),
            (
                "redhat/insights/in/me",
                Route::Handshake(Direction::FromClient),
            ),
            ("qa/insights/out/me", Route::Handshake(Direction::ToClient)),
            ("redhat/insights/status/me", Route::State),
        ] {
            let topic = topics().parse(name).unwrap();
            assert_eq!(topic.client, client("me"), "{name}");
            assert_eq!(topic.route, route, "{name}");
            assert_eq!(topics().name(&topic), name);
        }
    }

    #[test]
    fn what_is_not_exactly_a_clients_topic_is_nobodys() {
        for topic in [
            "",
            "redhat/insights",
            "redhat/insights/me/control",
            "redhat/insights/me/control/out/more",
            "redhat/insights/me/control/sideways",
            "redhat/insights/me/other/out",
            "redhat/insights//control/out",
            "redhat/insights/in/",
            "redhat/insights/in",
            "redhat/insights/up/me",
            "redhat/insights/in/me/",
            "redhat/insights/+/control/out",
            "redhat/insights/in/+",
            "redhat/insights/#",
            "redhat/insights2/me/control/out",
            "other/me/control/out",
            "/redhat/insights/me/control/out",
        ] {
            assert_eq!(topics().parse(topic), None, "{topic}");
        }
    }

    #[test]
    fn without_a_word_for_state_its_topic_is_nobodys() {
        let topics = Topics::new(vec!["p".into()], Words::default());
        assert_eq!(topics.parse("p/status/me"), None);
        assert!(topics.parse("p/in/me").is_some());
    }

    #[test]
    fn a_deployment_may_have_words_of_its_own() {
        let words = Words {
            to_service: "up".into(),
            to_client: "down".into(),
            state: None,
        };
        let topics = Topics::new(vec!["p".into()], words);
        assert!(topics.may_publish(&client("me"), "p/up/me"));
        assert!(topics.may_subscribe(&client("me"), "p/down/me"));
        assert!(!topics.may_publish(&client("me"), "p/in/me"));
        assert_eq!(topics.filters()[2], "p/up/+");
    }

    #[test]
    fn a_client_reaches_its_own_topics_only() {
        let (me, topics) = (client("me"), topics());
        for own in [
            "redhat/insights/me/control/out",
            "qa/insights/me/data/out",
            "redhat/insights/in/me",
            "redhat/insights/status/me",
        ] {
            assert!(topics.may_publish(&me, own), "{own}");
            assert!(!topics.may_subscribe(&me, own), "{own}");
        }
        for own in [
            "redhat/insights/me/control/in",
            "qa/insights/me/data/in",
            "redhat/insights/out/me",
        ] {
            assert!(topics.may_subscribe(&me, own), "{own}");
            assert!(!topics.may_publish(&me, own), "{own}");
        }
        for other in [
            "redhat/insights/you/control/out",
            "redhat/insights/in/you",
            "redhat/insights/out/you",
            "redhat/insights/you/data/in",
            "redhat/insights/+/control/in",
            "redhat/insights/out/#",
            "#",
        ] {
            assert!(!topics.may_publish(&me, other), "{other}");
            assert!(!topics.may_subscribe(&me, other), "{other}");
        }
    }
}
