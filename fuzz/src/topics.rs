//! Checks the invariants of topic names, for any topic and several deployments.

use domain::ClientId;
use protocol::{
    ClientTopic, DIALECTS, DialectSettings, Direction, HandshakeTopicLevels, TopicScheme,
};

/// Returns the topic prefixes and dialect settings of several deployments. The topic names are
/// easy to confuse: some prefixes start with another prefix, and some handshake levels are also
/// levels of other topics.
pub fn test_deployments() -> Vec<(Vec<String>, DialectSettings)> {
    let handshake_levels = |inbound: &str, outbound: &str, status: &str| DialectSettings {
        handshake_topics: HandshakeTopicLevels {
            inbound_level: inbound.to_owned(),
            outbound_level: outbound.to_owned(),
            status_level: Some(status.to_owned()),
        },
    };
    let prefixes = |prefixes: &[&str]| prefixes.iter().map(|&prefix| prefix.to_owned()).collect();
    vec![
        (
            prefixes(&["redhat/insights", "qa/insights"]),
            handshake_levels("in", "out", "status"),
        ),
        (prefixes(&["redhat/insights"]), DialectSettings::default()),
        (
            prefixes(&["redhat", "redhat/insights", "redhat/insights/in"]),
            handshake_levels("in", "out", "status"),
        ),
        (prefixes(&["a"]), handshake_levels("control", "data", "in")),
    ]
}

/// Returns whether an MQTT topic filter without `#` matches a topic.
pub fn filter_matches(filter: &str, topic: &str) -> bool {
    let (mut filter, mut topic) = (filter.split('/'), topic.split('/'));
    loop {
        match (filter.next(), topic.next()) {
            (None, None) => return true,
            (Some(pattern), Some(level)) if pattern == "+" || pattern == level => {}
            _ => return false,
        }
    }
}

/// Checks a topic in every deployment. If the text of the topic is also a valid client id, checks
/// the client id too.
///
/// # Panics
/// If an invariant is violated.
pub fn check_topic(topic: &str) {
    for (prefixes, settings) in test_deployments() {
        let topics = TopicScheme::new(prefixes.clone(), &settings);
        check_topic_in_scheme(&topics, topic);
        if let Ok(client) = ClientId::new(topic) {
            check_topics_of_client(&topics, &prefixes, &settings, &client);
        }
    }
}

fn check_topic_in_scheme(topics: &TopicScheme, topic: &str) {
    let parsed = topics.parse(topic);
    if let Some(parsed) = &parsed {
        assert_eq!(topics.topic_name(parsed).as_deref(), Some(topic));
        assert!(ClientId::new(parsed.client.as_str()).is_ok());
        assert!(!topic.contains(['+', '#', '\0']));
    }
    // Only the client in the topic may use the topic. The loop tries all levels of the topic, and
    // similar texts, in place of the client id.
    let mut permitted_clients = Vec::new();
    for level in topic.split('/') {
        for candidate in [
            level,
            level.trim(),
            &level.to_lowercase(),
            &level.to_uppercase(),
        ] {
            let Ok(client) = ClientId::new(candidate) else {
                continue;
            };
            let may_publish = topics.may_publish(&client, topic);
            let may_subscribe = topics.may_subscribe(&client, topic);
            assert!(
                !(may_publish && may_subscribe),
                "{client} may publish and subscribe"
            );
            if (may_publish || may_subscribe) && !permitted_clients.contains(&client) {
                permitted_clients.push(client);
            }
        }
    }
    let topic_owner: Vec<ClientId> = parsed.iter().map(|topic| topic.client.clone()).collect();
    assert_eq!(
        permitted_clients, topic_owner,
        "only the owner may use the topic"
    );

    let filters = topics.subscription_filters();
    let is_subscribed = filters
        .iter()
        .any(|(_, filter)| filter_matches(filter, topic));
    let is_from_client =
        parsed.is_some_and(|topic| topic.channel.direction() == Direction::FromClient);
    assert!(
        is_subscribed || !is_from_client,
        "the service does not subscribe to a topic that a client may publish to"
    );
    let has_valid_levels = topic.split('/').all(|level| ClientId::new(level).is_ok());
    assert!(
        !is_subscribed || is_from_client || !has_valid_levels,
        "the service subscribes to a topic that no client may publish to"
    );
}

/// Checks that every topic of the client can be parsed, and that only this client may use its
/// topics.
fn check_topics_of_client(
    topics: &TopicScheme,
    prefixes: &[String],
    settings: &DialectSettings,
    client: &ClientId,
) {
    let other_client = ClientId::new("another").expect("a valid client id");
    for prefix in prefixes {
        for dialect in DIALECTS {
            for channel_topic in dialect.topics(settings) {
                let channel = channel_topic.channel();
                let topic = ClientTopic {
                    prefix: prefix.clone(),
                    client: client.clone(),
                    channel,
                };
                let name = topics.topic_name(&topic).expect("the channel has a topic");
                assert_eq!(topics.parse(&name), Some(topic), "{name}");
                let is_from_client = channel.direction() == Direction::FromClient;
                assert_eq!(topics.may_publish(client, &name), is_from_client, "{name}");
                assert_eq!(
                    topics.may_subscribe(client, &name),
                    !is_from_client,
                    "{name}"
                );
                if *client != other_client {
                    let may_use = topics.may_publish(&other_client, &name)
                        || topics.may_subscribe(&other_client, &name);
                    assert!(!may_use, "another client may use {name}");
                }
            }
        }
    }
}
