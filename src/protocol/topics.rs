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
pub enum Channel {
    /// Status dialect: presence and commands.
    Control(Direction),
    /// Status dialect: messages of applications.
    Data(Direction),
    /// Handshake dialect: everything.
    Handshake(Direction),
    /// Handshake dialect: connection state from the client, where that has a topic of its own.
    State,
}

impl Channel {
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
    pub route: Channel,
}

/// The handshake dialect's words in topics; a deployment may have its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeSegments {
    /// What clients publish on.
    pub to_service: String,
    /// What clients listen on.
    pub to_client: String,
    /// What clients publish connection state on, if that has a topic of its own.
    pub state: Option<String>,
}

impl Default for HandshakeSegments {
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
pub struct TopicScheme {
    prefixes: Vec<String>,
    words: HandshakeSegments,
}

impl TopicScheme {
    /// TopicScheme under these prefixes (checked by `config`: no wildcard, no empty level at the ends).
    #[must_use]
    pub fn new(prefixes: Vec<String>, words: HandshakeSegments) -> Self {
        Self { prefixes, words }
    }

    /// Whose topic this is, or none if it is not a client's.
    ///
    /// A filter with a wildcard is not a topic of any client: a client id can hold none and every
    /// other level is a fixed short_text.
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

    fn handshake_route(&self, short_text: &str) -> Option<Channel> {
        let words = &self.words;
        if short_text == words.to_service {
            Some(Channel::Handshake(Direction::FromClient))
        } else if short_text == words.to_client {
            Some(Channel::Handshake(Direction::ToClient))
        } else if words.state.as_deref() == Some(short_text) {
            Some(Channel::State)
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
            Channel::Control(direction) => status("control", direction),
            Channel::Data(direction) => status("data", direction),
            Channel::Handshake(Direction::FromClient) => {
                format!("{prefix}/{}/{client}", words.to_service)
            }
            Channel::Handshake(Direction::ToClient) => {
                format!("{prefix}/{}/{client}", words.to_client)
            }
            Channel::State => {
                let short_text = words.state.as_deref().unwrap_or(&words.to_service);
                format!("{prefix}/{short_text}/{client}")
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
            if let Some(short_text) = &self.words.state {
                filters.push(format!("{prefix}/{short_text}/+"));
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

fn status_route(channel: &str, direction: &str) -> Option<Channel> {
    let direction = match direction {
        "in" => Direction::ToClient,
        "out" => Direction::FromClient,
        _ => return None,
    };
    match channel {
        "control" => Some(Channel::Control(direction)),
        "data" => Some(Channel::Data(direction)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topics() -> TopicScheme {
        let words = HandshakeSegments {
            state: Some("status".into()),
            ..HandshakeSegments::default()
        };
        TopicScheme::new(vec!["redhat/insights".into(), "qa/insights".into()], words)
    }

    fn client(name: &str) -> ClientId {
        ClientId::new(name).unwrap()
    }

    #[test]
    fn every_topic_of_a_client_has_one_name_and_is_read_back_from_it() {
        for (name, route) in [
            (
                "redhat/insights/me/control/out",
                Channel::Control(Direction::FromClient),
            ),
            (
                "qa/insights/me/control/in",
                Channel::Control(Direction::ToClient),
            ),
            (
                "redhat/insights/me/data/out",
                Channel::Data(Direction::FromClient),
            ),
            (
                "redhat/insights/me/data/in",
                Channel::Data(Direction::ToClient),
            ),
            (
                "redhat/insights/in/me",
                Channel::Handshake(Direction::FromClient),
            ),
            (
                "qa/insights/out/me",
                Channel::Handshake(Direction::ToClient),
            ),
            ("redhat/insights/status/me", Channel::State),
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
        let topics = TopicScheme::new(vec!["p".into()], HandshakeSegments::default());
        assert_eq!(topics.parse("p/status/me"), None);
        assert!(topics.parse("p/in/me").is_some());
    }

    #[test]
    fn a_deployment_may_have_words_of_its_own() {
        let words = HandshakeSegments {
            to_service: "up".into(),
            to_client: "down".into(),
            state: None,
        };
        let topics = TopicScheme::new(vec!["p".into()], words);
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
