//! Names of MQTT topics.
//!
//! Only the topic identifies the client that a message comes from or goes to. The parser in this
//! module therefore also decides which topics a client may use.

use crate::domain::{ClientId, Dialect};

/// The direction of the messages on a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the service to the client.
    ToClient,
    /// From the client to the service.
    FromClient,
}

/// One of a client's topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// Status dialect: presence messages and commands.
    Control(Direction),
    /// Status dialect: messages to and responses from applications.
    Data(Direction),
    /// Handshake dialect: all messages.
    Handshake(Direction),
    /// Handshake dialect: presence messages from the client, if the deployment configures a
    /// separate topic for them.
    HandshakeStatus,
}

impl Channel {
    /// The direction of messages on this channel.
    #[must_use]
    pub fn direction(self) -> Direction {
        match self {
            Self::Control(direction) | Self::Data(direction) | Self::Handshake(direction) => {
                direction
            }
            Self::HandshakeStatus => Direction::FromClient,
        }
    }

    /// The dialect that uses this channel.
    #[must_use]
    pub fn dialect(self) -> Dialect {
        match self {
            Self::Control(_) | Self::Data(_) => Dialect::Status,
            Self::Handshake(_) | Self::HandshakeStatus => Dialect::Handshake,
        }
    }

    /// The name as a metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Control(_) => "control",
            Self::Data(_) => "data",
            Self::Handshake(_) => "handshake",
            Self::HandshakeStatus => "status",
        }
    }
}

/// A topic of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTopic {
    /// The topic prefix, for example `redhat/insights`.
    pub prefix: String,
    /// The client that the topic belongs to.
    pub client: ClientId,
    /// Which of the client's topics.
    pub channel: Channel,
}

/// The topic levels that the handshake dialect uses between the prefix and the client id.
/// A deployment can configure them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeSegments {
    /// Level of the topics that clients publish to; `in` by default.
    pub inbound: String,
    /// Level of the topics that clients subscribe to; `out` by default.
    pub outbound: String,
    /// Level of separate topics for presence messages; none by default.
    pub status: Option<String>,
}

impl Default for HandshakeSegments {
    fn default() -> Self {
        Self {
            inbound: "in".to_owned(),
            outbound: "out".to_owned(),
            status: None,
        }
    }
}

/// The topic names of a deployment.
#[derive(Debug, Clone)]
pub struct TopicScheme {
    prefixes: Vec<String>,
    segments: HandshakeSegments,
}

impl TopicScheme {
    /// Creates the scheme. `config` has checked that no prefix has a wildcard, and that no prefix
    /// begins or ends with an empty level.
    #[must_use]
    pub fn new(prefixes: Vec<String>, segments: HandshakeSegments) -> Self {
        Self { prefixes, segments }
    }

    /// Parses the name of a client's topic.
    ///
    /// Returns `None` for a topic filter with a wildcard: a client id contains no wildcard, and
    /// every other level is fixed.
    #[must_use]
    pub fn parse(&self, topic: &str) -> Option<ClientTopic> {
        self.prefixes.iter().find_map(|prefix| {
            let suffix = topic.strip_prefix(prefix.as_str())?.strip_prefix('/')?;
            let mut levels = suffix.split('/');
            let first = levels.next()?;
            let second = levels.next()?;
            let third = levels.next();
            if levels.next().is_some() {
                return None;
            }
            let (client, channel) = match third {
                Some(third) => (first, status_channel(second, third)?),
                None => (second, self.handshake_channel(first)?),
            };
            Some(ClientTopic {
                prefix: prefix.clone(),
                client: ClientId::new(client).ok()?,
                channel,
            })
        })
    }

    fn handshake_channel(&self, level: &str) -> Option<Channel> {
        let segments = &self.segments;
        if level == segments.inbound {
            Some(Channel::Handshake(Direction::FromClient))
        } else if level == segments.outbound {
            Some(Channel::Handshake(Direction::ToClient))
        } else if segments.status.as_deref() == Some(level) {
            Some(Channel::HandshakeStatus)
        } else {
            None
        }
    }

    /// The MQTT name of a topic.
    #[must_use]
    pub fn topic_name(&self, topic: &ClientTopic) -> String {
        let ClientTopic { prefix, client, .. } = topic;
        let segments = &self.segments;
        let status_topic = |level: &str, direction| match direction {
            Direction::ToClient => format!("{prefix}/{client}/{level}/in"),
            Direction::FromClient => format!("{prefix}/{client}/{level}/out"),
        };
        let handshake_topic = |level: &str| format!("{prefix}/{level}/{client}");
        match topic.channel {
            Channel::Control(direction) => status_topic("control", direction),
            Channel::Data(direction) => status_topic("data", direction),
            Channel::Handshake(Direction::FromClient) => handshake_topic(&segments.inbound),
            Channel::Handshake(Direction::ToClient) => handshake_topic(&segments.outbound),
            // Without a separate topic, presence messages share the inbound topic.
            Channel::HandshakeStatus => {
                handshake_topic(segments.status.as_deref().unwrap_or(&segments.inbound))
            }
        }
    }

    /// The topic filters that the service subscribes to.
    #[must_use]
    pub fn subscription_filters(&self) -> Vec<String> {
        let mut filters = Vec::new();
        for prefix in &self.prefixes {
            filters.push(format!("{prefix}/+/control/out"));
            filters.push(format!("{prefix}/+/data/out"));
            filters.push(format!("{prefix}/{}/+", self.segments.inbound));
            if let Some(level) = &self.segments.status {
                filters.push(format!("{prefix}/{level}/+"));
            }
        }
        filters
    }

    /// Returns whether the client may publish to this topic: only to its own topics, and only in
    /// the direction from the client.
    #[must_use]
    pub fn may_publish(&self, client: &ClientId, topic: &str) -> bool {
        self.is_own(client, topic, Direction::FromClient)
    }

    /// Returns whether the client may subscribe to this filter: only to the full names of its own
    /// topics, and only in the direction to the client.
    #[must_use]
    pub fn may_subscribe(&self, client: &ClientId, filter: &str) -> bool {
        self.is_own(client, filter, Direction::ToClient)
    }

    fn is_own(&self, client: &ClientId, topic: &str, direction: Direction) -> bool {
        self.parse(topic)
            .is_some_and(|topic| topic.client == *client && topic.channel.direction() == direction)
    }
}

fn status_channel(level: &str, direction: &str) -> Option<Channel> {
    let direction = match direction {
        "in" => Direction::ToClient,
        "out" => Direction::FromClient,
        _ => return None,
    };
    match level {
        "control" => Some(Channel::Control(direction)),
        "data" => Some(Channel::Data(direction)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topics() -> TopicScheme {
        let segments = HandshakeSegments {
            status: Some("status".into()),
            ..HandshakeSegments::default()
        };
        TopicScheme::new(
            vec!["redhat/insights".into(), "qa/insights".into()],
            segments,
        )
    }

    fn client(name: &str) -> ClientId {
        ClientId::new(name).unwrap()
    }

    #[test]
    fn every_client_topic_is_parsed_and_formatted_to_the_same_name() {
        for (name, channel) in [
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
            ("redhat/insights/status/me", Channel::HandshakeStatus),
        ] {
            let topic = topics().parse(name).unwrap();
            assert_eq!(topic.client, client("me"), "{name}");
            assert_eq!(topic.channel, channel, "{name}");
            assert_eq!(topics().topic_name(&topic), name);
        }
    }

    #[test]
    fn topics_of_no_client_are_not_parsed() {
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
    fn status_topic_is_unknown_unless_configured() {
        let topics = TopicScheme::new(vec!["p".into()], HandshakeSegments::default());
        assert_eq!(topics.parse("p/status/me"), None);
        assert!(topics.parse("p/in/me").is_some());
    }

    #[test]
    fn handshake_segments_are_configurable() {
        let segments = HandshakeSegments {
            inbound: "up".into(),
            outbound: "down".into(),
            status: None,
        };
        let topics = TopicScheme::new(vec!["p".into()], segments);
        assert!(topics.may_publish(&client("me"), "p/up/me"));
        assert!(topics.may_subscribe(&client("me"), "p/down/me"));
        assert!(!topics.may_publish(&client("me"), "p/in/me"));
        assert_eq!(topics.subscription_filters()[2], "p/up/+");
    }

    #[test]
    fn client_may_use_only_its_own_topics() {
        let (me, topics) = (client("me"), topics());
        for publishable in [
            "redhat/insights/me/control/out",
            "qa/insights/me/data/out",
            "redhat/insights/in/me",
            "redhat/insights/status/me",
        ] {
            assert!(topics.may_publish(&me, publishable), "{publishable}");
            assert!(!topics.may_subscribe(&me, publishable), "{publishable}");
        }
        for subscribable in [
            "redhat/insights/me/control/in",
            "qa/insights/me/data/in",
            "redhat/insights/out/me",
        ] {
            assert!(topics.may_subscribe(&me, subscribable), "{subscribable}");
            assert!(!topics.may_publish(&me, subscribable), "{subscribable}");
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
