use super::*;
use crate::protocol::HandshakeSegments;
use bytes::Bytes;

fn message(headers: &[(&str, &str)]) -> QueuedMessage {
    QueuedMessage {
        partition: 0,
        offset: 0,
        payload: Bytes::from_static(b"{}"),
        headers: headers
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        queued: "2026-01-01T00:00:00Z".parse().ok(),
    }
}

fn read(queue: QueueTopic, headers: &[(&str, &str)]) -> RecorderInput {
    let topics = TopicScheme::new(vec!["redhat/insights".into()], HandshakeSegments::default());
    event(queue, &topics, &message(headers))
}

const TOPIC: (&str, &str) = ("topic", "redhat/insights/me/control/out");

#[test]
fn headers_say_whose_it_is_and_when_it_came() {
    let full = read(
        QueueTopic::Ingress,
        &[
            TOPIC,
            ("date_received", "2026-01-02T03:04:05.123456789Z"),
            ("mqtt_retain", "true"),
        ],
    );
    let RecorderInput::Message {
        topic,
        message,
        place,
        late,
    } = full
    else {
        panic!("{full:?}");
    };
    assert_eq!(topic.client.as_str(), "me");
    assert_eq!(message.received.to_string(), "2026-01-02T03:04:05.123456Z");
    assert!(message.replayed);
    assert!(place.is_some() && !late);
}

#[test]
fn the_go_implementation_sends_no_retain_flag_and_a_broken_date_falls_back_to_the_queues() {
    let bare = read(
        QueueTopic::Ingress,
        &[TOPIC, ("date_received", "yesterday")],
    );
    let got = bare.received().unwrap();
    assert_eq!(got.received.to_string(), "2026-01-01T00:00:00Z");
    assert!(!got.replayed);
}

#[test]
fn what_names_no_client_is_a_stray() {
    for headers in [
        &[("topic", "elsewhere")][..],
        &[],
        &[("topic", "redhat/insights/me/control/in")],
    ] {
        assert!(matches!(
            read(QueueTopic::Ingress, headers),
            RecorderInput::UnknownTopic { .. }
        ));
    }
}

#[test]
fn what_was_cut_says_so() {
    let cut = read(
        QueueTopic::Answers,
        &[TOPIC, ("cut_from", "3000000"), ("cut_sha256", "abc")],
    );
    assert_eq!(cut.received().unwrap().size(), 3_000_000);
    assert!(matches!(
        cut,
        RecorderInput::Message {
            late: true,
            place: None,
            ..
        }
    ));
}
