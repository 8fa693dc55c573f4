//! What must hold of every topic, in every deployment.

use crate::domain::ClientId;
use crate::protocol::{ClientTopic, Direction, Channel, TopicScheme, HandshakeSegments};

/// Deployments that differ in what could be mixed up: prefixes within prefixes, words that are
/// levels of other topics.
pub fn deployments() -> Vec<(Vec<String>, HandshakeSegments)> {
    let words = |to_service: &str, to_client: &str, state: Option<&str>| HandshakeSegments {
        to_service: to_service.to_owned(),
        to_client: to_client.to_owned(),
        state: state.map(str::to_owned),
    };
    let prefixes = |list: &[&str]| list.iter().map(|&prefix| prefix.to_owned()).collect();
    vec![
        (
            prefixes(&["redhat/insights", "qa/insights"]),
            words("in", "out", Some("status")),
        ),
        (prefixes(&["redhat/insights"]), HandshakeSegments::default()),
        (
            prefixes(&["redhat", "redhat/insights", "redhat/insights/in"]),
            words("in", "out", Some("status")),
        ),
        (prefixes(&["a"]), words("control", "data", Some("in"))),
    ]
}

/// Whether a filter of MQTT takes a topic; the filters here have no `#`.
pub fn matches(filter: &str, topic: &str) -> bool {
    let (mut filter, mut topic) = (filter.split('/'), topic.split('/'));
    loop {
        match (filter.next(), topic.next()) {
            (None, None) => return true,
            (Some(level), Some(name)) if level == "+" || level == name => {}
            _ => return false,
        }
    }
}

/// Checks a topic in every deployment.
pub fn check(topic: &str) {
    for (prefixes, words) in deployments() {
        let topics = TopicScheme::new(prefixes.clone(), words.clone());
        check_topic(&topics, topic);
        if let Ok(client) = ClientId::new(topic) {
            check_client(&topics, &prefixes, words.state.is_some(), &client);
        }
    }
}

fn check_topic(topics: &TopicScheme, topic: &str) {
    let own = topics.parse(topic);
    if let Some(own) = &own {
        assert_eq!(topics.name(own), topic, "it has another name");
        assert!(ClientId::new(own.client.as_str()).is_ok());
        assert!(!topic.contains(['+', '#', '\0']));
    }
    // Whoever could be meant by any level, and by what is near a level.
    let mut reached = Vec::new();
    for level in topic.split('/') {
        for name in [
            level,
            level.trim(),
            &level.to_lowercase(),
            &level.to_uppercase(),
        ] {
            let Ok(client) = ClientId::new(name) else {
                continue;
            };
            let publish = topics.may_publish(&client, topic);
            let subscribe = topics.may_subscribe(&client, topic);
            assert!(!(publish && subscribe), "{client} speaks and listens there");
            if (publish || subscribe) && !reached.contains(&client) {
                reached.push(client);
            }
        }
    }
    let owner: Vec<ClientId> = own.iter().map(|own| own.client.clone()).collect();
    assert_eq!(reached, owner, "it is reached by others than its owner");

    let heard = topics.filters().iter().any(|filter| matches(filter, topic));
    let from_client = own.is_some_and(|own| own.route.direction() == Direction::FromClient);
    assert!(
        heard || !from_client,
        "a client may speak there and nobody listens"
    );
    let ids = topic.split('/').all(|level| ClientId::new(level).is_ok());
    assert!(
        !heard || from_client || !ids,
        "heard, of a good name, and nobody's"
    );
}

/// Every topic of a client is its own by name, and no filter of another client's.
fn check_client(topics: &TopicScheme, prefixes: &[String], has_state: bool, client: &ClientId) {
    let other = ClientId::new("another").expect("a good name");
    for prefix in prefixes {
        for direction in [Direction::ToClient, Direction::FromClient] {
            let mut routes = vec![
                Channel::Control(direction),
                Channel::Data(direction),
                Channel::Handshake(direction),
            ];
            if has_state && direction == Direction::FromClient {
                routes.push(Channel::State);
            }
            for route in routes {
                let own = ClientTopic {
                    prefix: prefix.clone(),
                    client: client.clone(),
                    route,
                };
                let name = topics.name(&own);
                assert_eq!(topics.parse(&name), Some(own), "{name}");
                let from_client = direction == Direction::FromClient;
                assert_eq!(topics.may_publish(client, &name), from_client, "{name}");
                assert_eq!(topics.may_subscribe(client, &name), !from_client, "{name}");
                if *client != other {
                    let reached =
                        topics.may_publish(&other, &name) || topics.may_subscribe(&other, &name);
                    assert!(!reached, "{name} is another's");
                }
            }
        }
    }
}
