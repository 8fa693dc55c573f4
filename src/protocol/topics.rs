//! Topic names. The topic is the only thing that names a client, so this is where a client's reach
//! is decided: what does not parse here is nobody's.

use crate::domain::ClientId;

/// Which of a client's two pairs of topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// Presence and commands.
    Control,
    /// Messages of applications.
    Data,
}

impl Channel {
    fn level(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Data => "data",
        }
    }
}

/// Seen from the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the client.
    In,
    /// From the client.
    Out,
}

impl Direction {
    fn level(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
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
    /// Control or data.
    pub channel: Channel,
    /// To or from the client.
    pub direction: Direction,
}

impl ClientTopic {
    /// The topic's name on the wire.
    #[must_use]
    pub fn name(&self) -> String {
        format!(
            "{}/{}/{}/{}",
            self.prefix,
            self.client,
            self.channel.level(),
            self.direction.level()
        )
    }
}

/// The topics of a deployment: the prefixes that it listens on.
#[derive(Debug, Clone)]
pub struct Topics {
    prefixes: Vec<String>,
}

impl Topics {
    /// Topics under these prefixes (checked by `config`: no wildcard, no empty level at the ends).
    #[must_use]
    pub fn new(prefixes: Vec<String>) -> Self {
        Self { prefixes }
    }

    /// The prefixes, as configured.
    #[must_use]
    pub fn prefixes(&self) -> &[String] {
        &self.prefixes
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
            let (client, channel, direction) = (levels.next()?, levels.next()?, levels.next()?);
            if levels.next().is_some() {
                return None;
            }
            Some(ClientTopic {
                prefix: prefix.clone(),
                client: ClientId::new(client).ok()?,
                channel: match channel {
                    "control" => Channel::Control,
                    "data" => Channel::Data,
                    _ => return None,
                },
                direction: match direction {
                    "in" => Direction::In,
                    "out" => Direction::Out,
                    _ => return None,
                },
            })
        })
    }

    /// Whether this client may publish there: its own `…/out` topics.
    #[must_use]
    pub fn may_publish(&self, client: &ClientId, topic: &str) -> bool {
        self.is_own(client, topic, Direction::Out)
    }

    /// Whether this client may subscribe to that: its own `…/in` topics, each by its full name.
    #[must_use]
    pub fn may_subscribe(&self, client: &ClientId, filter: &str) -> bool {
        self.is_own(client, filter, Direction::In)
    }

    fn is_own(&self, client: &ClientId, topic: &str, direction: Direction) -> bool {
        self.parse(topic)
            .is_some_and(|topic| topic.client == *client && topic.direction == direction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topics() -> Topics {
        Topics::new(vec!["redhat/insights".into(), "qa/insights".into()])
    }

    #[test]
    fn a_topic_names_its_client_channel_and_direction() {
        let topic = topics().parse("qa/insights/abc/data/out").unwrap();
        assert_eq!(topic.prefix, "qa/insights");
        assert_eq!(topic.client.as_str(), "abc");
        assert_eq!(topic.channel, Channel::Data);
        assert_eq!(topic.direction, Direction::Out);
        assert_eq!(topic.name(), "qa/insights/abc/data/out");
    }

    #[test]
    fn odd_topics_belong_to_nobody() {
        for topic in [
            "",
            "/",
            "redhat/insights",
            "redhat/insights/",
            "redhat/insights//control/out",
            "redhat/insights/abc",
            "redhat/insights/abc/control",
            "redhat/insights/abc/control/out/",
            "redhat/insights/abc/control/out/more",
            "redhat/insights/abc/Control/out",
            "redhat/insightsx/abc/control/out",
            "other/insights/abc/control/out",
            "$share/g/redhat/insights/abc/control/in",
            "$SYS/broker/version",
        ] {
            assert_eq!(topics().parse(topic), None, "{topic:?}");
        }
    }

    #[test]
    fn a_client_reaches_its_own_topics_only() {
        let me = ClientId::new("me").unwrap();
        let topics = topics();
        assert!(topics.may_publish(&me, "redhat/insights/me/control/out"));
        assert!(topics.may_publish(&me, "redhat/insights/me/data/out"));
        assert!(topics.may_subscribe(&me, "redhat/insights/me/control/in"));
        assert!(topics.may_subscribe(&me, "redhat/insights/me/data/in"));
        for no in [
            "redhat/insights/me/control/in",
            "redhat/insights/other/control/out",
            "redhat/insights/ME/control/out",
        ] {
            assert!(!topics.may_publish(&me, no), "{no}");
        }
        for no in [
            "redhat/insights/me/control/out",
            "redhat/insights/other/data/in",
            "redhat/insights/+/data/in",
            "redhat/insights/me/#",
            "redhat/insights/me/+/in",
            "#",
            "$share/x/redhat/insights/me/data/in",
        ] {
            assert!(!topics.may_subscribe(&me, no), "{no}");
        }
    }
}
