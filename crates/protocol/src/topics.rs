//! Names of MQTT topics.
//!
//! Only the topic of a message identifies the client that sent or receives the message. So this
//! module also decides which topics a client may use.

use serde::{Deserialize, Deserializer};

use domain::{ClientId, Dialect};

/// The direction of the messages on a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the service to the client.
    ToClient,
    /// From the client to the service.
    FromClient,
}

/// The kind of a client's topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// Status dialect: presence messages and commands.
    Control(Direction),
    /// Status dialect: messages to and responses from applications.
    Data(Direction),
    /// Handshake dialect: all messages.
    Handshake(Direction),
    /// Handshake dialect: presence messages from the client. Only used if the deployment configures
    /// a separate topic for presence messages.
    HandshakeStatus,
}

impl Channel {
    /// Returns the direction of the messages on this channel.
    #[must_use]
    pub fn direction(self) -> Direction {
        match self {
            Self::Control(direction) | Self::Data(direction) | Self::Handshake(direction) => {
                direction
            }
            Self::HandshakeStatus => Direction::FromClient,
        }
    }

    /// Returns the dialect that uses this channel.
    #[must_use]
    pub fn dialect(self) -> Dialect {
        match self {
            Self::Control(_) | Self::Data(_) => Dialect::Status,
            Self::Handshake(_) | Self::HandshakeStatus => Dialect::Handshake,
        }
    }

    /// Returns the name of the channel in metric labels.
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
    /// The kind of the topic.
    pub channel: Channel,
}

/// The topic levels that the handshake dialect uses between the prefix and the client id. A
/// deployment can configure these levels.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandshakeTopicLevels {
    /// Level in the topics that clients publish to. The default is `in`.
    #[serde(rename = "in")]
    pub inbound_level: String,
    /// Level in the topics that clients subscribe to. The default is `out`.
    #[serde(rename = "out")]
    pub outbound_level: String,
    /// Level in the separate topics for presence messages. `None` if the deployment has no separate
    /// topics for presence messages.
    #[serde(rename = "status", deserialize_with = "level_unless_empty")]
    pub status_level: Option<String>,
}

/// Deserializes a topic level. Returns `None` for an empty string.
fn level_unless_empty<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    let level = String::deserialize(deserializer)?;
    Ok((!level.is_empty()).then_some(level))
}

impl Default for HandshakeTopicLevels {
    fn default() -> Self {
        Self {
            inbound_level: "in".to_owned(),
            outbound_level: "out".to_owned(),
            status_level: None,
        }
    }
}

/// The topic names of a deployment.
#[derive(Debug, Clone)]
pub struct TopicScheme {
    prefixes: Vec<String>,
    handshake_levels: HandshakeTopicLevels,
}

impl TopicScheme {
    /// Creates the topic scheme. The validation of the settings has checked the prefixes: no prefix
    /// contains a wildcard, and no prefix begins or ends with an empty level.
    #[must_use]
    pub fn new(prefixes: Vec<String>, handshake_levels: HandshakeTopicLevels) -> Self {
        Self {
            prefixes,
            handshake_levels,
        }
    }

    /// Parses the name of a client's topic.
    ///
    /// Returns `None` for a topic filter with a wildcard. A client id cannot contain a wildcard,
    /// and every other level must be a fixed text.
    #[must_use]
    pub fn parse(&self, topic: &str) -> Option<ClientTopic> {
        self.prefixes.iter().find_map(|prefix| {
            let suffix = topic.strip_prefix(prefix.as_str())?.strip_prefix('/')?;
            let mut levels = suffix.split('/');
            let first_level = levels.next()?;
            let second_level = levels.next()?;
            let third_level = levels.next();
            if levels.next().is_some() {
                return None;
            }
            let (client, channel) = match third_level {
                Some(third_level) => (
                    first_level,
                    status_dialect_channel(second_level, third_level)?,
                ),
                None => (second_level, self.handshake_dialect_channel(first_level)?),
            };
            Some(ClientTopic {
                prefix: prefix.clone(),
                client: ClientId::new(client).ok()?,
                channel,
            })
        })
    }

    fn handshake_dialect_channel(&self, level: &str) -> Option<Channel> {
        let handshake_levels = &self.handshake_levels;
        if level == handshake_levels.inbound_level {
            Some(Channel::Handshake(Direction::FromClient))
        } else if level == handshake_levels.outbound_level {
            Some(Channel::Handshake(Direction::ToClient))
        } else if handshake_levels.status_level.as_deref() == Some(level) {
            Some(Channel::HandshakeStatus)
        } else {
            None
        }
    }

    /// Returns the name of a topic in MQTT.
    #[must_use]
    pub fn topic_name(&self, topic: &ClientTopic) -> String {
        let ClientTopic { prefix, client, .. } = topic;
        let handshake_levels = &self.handshake_levels;
        let status_dialect_topic = |level: &str, direction| match direction {
            Direction::ToClient => format!("{prefix}/{client}/{level}/in"),
            Direction::FromClient => format!("{prefix}/{client}/{level}/out"),
        };
        let handshake_dialect_topic = |level: &str| format!("{prefix}/{level}/{client}");
        match topic.channel {
            Channel::Control(direction) => status_dialect_topic("control", direction),
            Channel::Data(direction) => status_dialect_topic("data", direction),
            Channel::Handshake(Direction::FromClient) => {
                handshake_dialect_topic(&handshake_levels.inbound_level)
            }
            Channel::Handshake(Direction::ToClient) => {
                handshake_dialect_topic(&handshake_levels.outbound_level)
            }
            // If the deployment has no separate topic for presence messages, clients publish
            // presence messages on the inbound topic.
            Channel::HandshakeStatus => handshake_dialect_topic(
                handshake_levels
                    .status_level
                    .as_deref()
                    .unwrap_or(&handshake_levels.inbound_level),
            ),
        }
    }

    /// Returns the topic filters that the service subscribes to.
    #[must_use]
    pub fn subscription_filters(&self) -> Vec<String> {
        let mut filters = Vec::new();
        for prefix in &self.prefixes {
            filters.push(format!("{prefix}/+/control/out"));
            filters.push(format!("{prefix}/+/data/out"));
            filters.push(format!(
                "{prefix}/{}/+",
                self.handshake_levels.inbound_level
            ));
            if let Some(level) = &self.handshake_levels.status_level {
                filters.push(format!("{prefix}/{level}/+"));
            }
        }
        filters
    }

    /// Returns whether the client may publish to this topic. A client may publish only to its own
    /// topics, and only to the topics for messages from the client.
    #[must_use]
    pub fn may_publish(&self, client: &ClientId, topic: &str) -> bool {
        self.is_own_topic(client, topic, Direction::FromClient)
    }

    /// Returns whether the client may subscribe to this topic filter. A client may subscribe only
    /// to its own topics without wildcards, and only to the topics for messages to the client.
    #[must_use]
    pub fn may_subscribe(&self, client: &ClientId, filter: &str) -> bool {
        self.is_own_topic(client, filter, Direction::ToClient)
    }

    fn is_own_topic(&self, client: &ClientId, topic: &str, direction: Direction) -> bool {
        self.parse(topic)
            .is_some_and(|topic| topic.client == *client && topic.channel.direction() == direction)
    }
}

fn status_dialect_channel(level: &str, direction: &str) -> Option<Channel> {
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

    fn topic_scheme() -> TopicScheme {
        let handshake_levels = HandshakeTopicLevels {
            status_level: Some("status".into()),
            ..HandshakeTopicLevels::default()
        };
        TopicScheme::new(
            vec!["redhat/insights".into(), "qa/insights".into()],
            handshake_levels,
        )
    }

    fn client(client_id: &str) -> ClientId {
        ClientId::new(client_id).unwrap()
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
            let topic = topic_scheme().parse(name).unwrap();
            assert_eq!(topic.client, client("me"), "{name}");
            assert_eq!(topic.channel, channel, "{name}");
            assert_eq!(topic_scheme().topic_name(&topic), name);
        }
    }

    #[test]
    fn topics_that_belong_to_no_client_are_not_parsed() {
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
            assert_eq!(topic_scheme().parse(topic), None, "{topic}");
        }
    }

    #[test]
    fn status_topic_is_unknown_unless_configured() {
        let topics = TopicScheme::new(vec!["p".into()], HandshakeTopicLevels::default());
        assert_eq!(topics.parse("p/status/me"), None);
        assert!(topics.parse("p/in/me").is_some());
    }

    #[test]
    fn handshake_topic_levels_are_configurable() {
        let handshake_levels = HandshakeTopicLevels {
            inbound_level: "up".into(),
            outbound_level: "down".into(),
            status_level: None,
        };
        let topics = TopicScheme::new(vec!["p".into()], handshake_levels);
        assert!(topics.may_publish(&client("me"), "p/up/me"));
        assert!(topics.may_subscribe(&client("me"), "p/down/me"));
        assert!(!topics.may_publish(&client("me"), "p/in/me"));
        assert_eq!(topics.subscription_filters()[2], "p/up/+");
    }

    #[test]
    fn client_may_use_only_its_own_topics() {
        let (me, topics) = (client("me"), topic_scheme());
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
