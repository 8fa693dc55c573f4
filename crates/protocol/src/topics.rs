//! Names of MQTT topics.
//!
//! Only the topic of a message identifies the client that sent or receives the message. So this
//! module also decides which topics a client may use.

use crate::registry::{self, DIALECTS, DialectSettings};
use crate::{Channel, Dialect, Direction};
use domain::{ClientId, DialectName};

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

/// The topic levels of a channel before and after the client id, without the prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelTopic {
    channel: Channel,
    /// The levels before the client id. Empty, or ends with `/`.
    before_client: String,
    /// The levels after the client id. Empty, or starts with `/`.
    after_client: String,
}

impl ChannelTopic {
    /// Creates the topic of a channel. Each text contains topic levels separated by `/`, or is
    /// empty. For example, `""` and `"control/out"` result in `{prefix}/{client}/control/out`.
    #[must_use]
    pub fn new(channel: Channel, levels_before_client: &str, levels_after_client: &str) -> Self {
        let mut before_client = levels_before_client.to_owned();
        if !before_client.is_empty() {
            before_client.push('/');
        }
        let mut after_client = levels_after_client.to_owned();
        if !after_client.is_empty() {
            after_client.insert(0, '/');
        }
        Self {
            channel,
            before_client,
            after_client,
        }
    }

    /// Returns the channel of the topic.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel
    }

    /// Returns whether there are two client ids for which both topics have the same name.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let (own_name, other_name) = (self.format("", "+"), other.format("", "+"));
        own_name.split('/').count() == other_name.split('/').count()
            && own_name
                .split('/')
                .zip(other_name.split('/'))
                .all(|(level, other)| level == other || level == "+" || other == "+")
    }

    fn format(&self, prefix: &str, client: &str) -> String {
        let Self {
            before_client,
            after_client,
            ..
        } = self;
        format!("{prefix}/{before_client}{client}{after_client}")
    }

    /// Returns the topic level of the client id in a topic name without the prefix.
    fn client_level<'a>(&self, name_without_prefix: &'a str) -> Option<&'a str> {
        let client = name_without_prefix
            .strip_prefix(&self.before_client)?
            .strip_suffix(&self.after_client)?;
        (!client.is_empty() && !client.contains('/')).then_some(client)
    }
}

/// The topic names of a deployment, and the dialects that use these topics.
#[derive(Debug, Clone)]
pub struct TopicScheme {
    prefixes: Vec<String>,
    dialects: &'static [&'static dyn Dialect],
    /// The topics of all dialects.
    channel_topics: Vec<ChannelTopic>,
}

impl TopicScheme {
    /// Creates the topic scheme of all [`DIALECTS`]. The validation of the settings has checked the
    /// prefixes: no prefix contains a wildcard, and no prefix begins or ends with an empty level.
    #[must_use]
    pub fn new(prefixes: Vec<String>, settings: &DialectSettings) -> Self {
        Self::with_dialects(DIALECTS, prefixes, settings)
    }

    /// Creates the topic scheme of these dialects. Tests use this function to add a dialect.
    #[must_use]
    pub fn with_dialects(
        dialects: &'static [&'static dyn Dialect],
        prefixes: Vec<String>,
        settings: &DialectSettings,
    ) -> Self {
        Self {
            prefixes,
            dialects,
            channel_topics: dialects
                .iter()
                .flat_map(|dialect| dialect.topics(settings))
                .collect(),
        }
    }

    /// Returns the dialect with this name. Returns `None` if the topic scheme has no such dialect.
    #[must_use]
    pub fn find_dialect(&self, name: &DialectName) -> Option<&'static dyn Dialect> {
        registry::find_in(self.dialects, name)
    }

    /// Parses the name of a client's topic.
    ///
    /// Returns `None` for a topic filter with a wildcard. A client id cannot contain a wildcard,
    /// and every other level must be a fixed text.
    #[must_use]
    pub fn parse(&self, topic: &str) -> Option<ClientTopic> {
        let (prefix, channel, client) = self.split(topic)?;
        Some(ClientTopic {
            client: ClientId::new(client).ok()?,
            prefix: prefix.to_owned(),
            channel,
        })
    }

    /// Splits the name of a client's topic into prefix, channel and client id. The client id is not
    /// validated. Allocates no memory.
    #[must_use]
    pub fn split<'a>(&self, topic: &'a str) -> Option<(&str, Channel, &'a str)> {
        self.prefixes.iter().find_map(|prefix| {
            let name_without_prefix = topic.strip_prefix(prefix.as_str())?.strip_prefix('/')?;
            self.channel_topics.iter().find_map(|channel_topic| {
                let client = channel_topic.client_level(name_without_prefix)?;
                Some((prefix.as_str(), channel_topic.channel, client))
            })
        })
    }

    /// Returns the name of a topic in MQTT. Returns `None` if the deployment does not have the
    /// channel.
    #[must_use]
    pub fn topic_name(&self, topic: &ClientTopic) -> Option<String> {
        let channel_topic = self
            .channel_topics
            .iter()
            .find(|channel_topic| channel_topic.channel == topic.channel)?;
        Some(channel_topic.format(&topic.prefix, topic.client.as_str()))
    }

    /// Returns the topic filters that the service subscribes to, each with its channel.
    #[must_use]
    pub fn subscription_filters(&self) -> Vec<(Channel, String)> {
        let prefixes = self.prefixes.iter();
        prefixes
            .flat_map(|prefix| {
                self.inbound_topics()
                    .map(|topic| (topic.channel, topic.format(prefix, "+")))
            })
            .collect()
    }

    /// Returns the channels on which clients send messages.
    pub fn inbound_channels(&self) -> impl Iterator<Item = Channel> {
        self.inbound_topics().map(ChannelTopic::channel)
    }

    fn inbound_topics(&self) -> impl Iterator<Item = &ChannelTopic> {
        self.channel_topics
            .iter()
            .filter(|topic| topic.channel.direction() == Direction::FromClient)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HandshakeTopicLevels, handshake, status};

    fn topic_scheme() -> TopicScheme {
        let settings = DialectSettings {
            handshake_topics: HandshakeTopicLevels {
                status_level: Some("status".into()),
                ..HandshakeTopicLevels::default()
            },
        };
        TopicScheme::new(
            vec!["redhat/insights".into(), "qa/insights".into()],
            &settings,
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
                status::CONTROL_FROM_CLIENT,
            ),
            ("qa/insights/me/control/in", status::CONTROL_TO_CLIENT),
            ("redhat/insights/me/data/out", status::DATA_FROM_CLIENT),
            ("redhat/insights/me/data/in", status::DATA_TO_CLIENT),
            ("redhat/insights/in/me", handshake::FROM_CLIENT),
            ("qa/insights/out/me", handshake::TO_CLIENT),
            ("redhat/insights/status/me", handshake::STATUS_FROM_CLIENT),
        ] {
            let topic = topic_scheme().parse(name).unwrap();
            assert_eq!(topic.client, client("me"), "{name}");
            assert_eq!(topic.channel, channel, "{name}");
            assert_eq!(topic_scheme().topic_name(&topic).as_deref(), Some(name));
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
    fn invalid_client_id_is_split_but_not_parsed() {
        let too_long = "x".repeat(300);
        let topic = format!("redhat/insights/{too_long}/data/out");
        let expected = (
            "redhat/insights",
            status::DATA_FROM_CLIENT,
            too_long.as_str(),
        );
        assert_eq!(topic_scheme().split(&topic), Some(expected));
        assert_eq!(topic_scheme().parse(&topic), None);
    }

    #[test]
    fn status_topic_is_unknown_unless_configured() {
        let topics = TopicScheme::new(vec!["p".into()], &DialectSettings::default());
        assert_eq!(topics.parse("p/status/me"), None);
        assert!(topics.parse("p/in/me").is_some());
        let status_topic = ClientTopic {
            prefix: "p".into(),
            client: client("me"),
            channel: handshake::STATUS_FROM_CLIENT,
        };
        assert_eq!(topics.topic_name(&status_topic), None);
    }

    #[test]
    fn handshake_topic_levels_are_configurable() {
        let settings = DialectSettings {
            handshake_topics: HandshakeTopicLevels {
                inbound_level: "up".into(),
                outbound_level: "down".into(),
                status_level: None,
            },
        };
        let topics = TopicScheme::new(vec!["p".into()], &settings);
        assert!(topics.may_publish(&client("me"), "p/up/me"));
        assert!(topics.may_subscribe(&client("me"), "p/down/me"));
        assert!(!topics.may_publish(&client("me"), "p/in/me"));
        assert_eq!(topics.subscription_filters()[2].1, "p/up/+");
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

    #[test]
    fn topics_overlap_if_a_client_id_can_be_a_level_of_the_other_topic() {
        let topic = |before, after| ChannelTopic::new(handshake::FROM_CLIENT, before, after);
        assert!(topic("in", "").overlaps(&topic("", "x")));
        assert!(topic("", "x").overlaps(&topic("", "x")));
        assert!(!topic("in", "").overlaps(&topic("out", "")));
        assert!(!topic("in", "").overlaps(&topic("", "control/out")));
    }
}
