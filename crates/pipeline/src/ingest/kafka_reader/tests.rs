use super::*;
use bytes::Bytes;
use protocol::DialectSettings;

fn kafka_message(headers: &[(&str, &str)]) -> KafkaMessage {
    KafkaMessage {
        topic: None,
        partition: 0,
        offset: 0,
        payload: Bytes::from_static(b"{}"),
        headers: headers
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        timestamp: "2026-01-01T00:00:00Z".parse().ok(),
    }
}

fn recorder_input(queue_topic: QueueTopic, headers: &[(&str, &str)]) -> RecorderInput {
    let topic_scheme =
        TopicScheme::new(vec!["redhat/insights".into()], &DialectSettings::default());
    to_recorder_input(queue_topic, &topic_scheme, &kafka_message(headers))
}

const TOPIC_HEADER: (&str, &str) = ("topic", "redhat/insights/me/control/out");

#[test]
fn topic_receive_time_and_retain_flag_are_read_from_the_headers() {
    let input = recorder_input(
        QueueTopic::Ingress,
        &[
            TOPIC_HEADER,
            ("date_received", "2026-01-02T03:04:05.123456789Z"),
            ("mqtt_retain", "true"),
        ],
    );
    let RecorderInput::Message {
        topic,
        message,
        position,
        from_answers_topic,
    } = input
    else {
        panic!("{input:?}");
    };
    assert_eq!(topic.client.as_str(), "me");
    assert_eq!(
        message.received_at.to_string(),
        "2026-01-02T03:04:05.123456Z"
    );
    assert!(message.retained);
    assert!(position.is_some() && !from_answers_topic);
}

#[test]
fn missing_retain_header_means_not_retained_and_invalid_date_is_replaced_by_kafka_timestamp() {
    let input = recorder_input(
        QueueTopic::Ingress,
        &[TOPIC_HEADER, ("date_received", "yesterday")],
    );
    let message = input.inbound_message().unwrap();
    assert_eq!(message.received_at.to_string(), "2026-01-01T00:00:00Z");
    // The Go implementation writes no retain header.
    assert!(!message.retained);
}

#[test]
fn topic_on_which_no_client_publishes_is_unknown() {
    for headers in [
        &[("topic", "elsewhere")][..],
        &[],
        &[("topic", "redhat/insights/me/control/in")],
    ] {
        assert!(matches!(
            recorder_input(QueueTopic::Ingress, headers),
            RecorderInput::UnknownTopic { .. }
        ));
    }
}

#[test]
fn truncation_headers_are_read_by_their_current_and_deprecated_names() {
    for (size_header, sha256_header) in [
        ("truncated_from", "truncated_sha256"),
        ("cut_from", "cut_sha256"),
    ] {
        let headers = [
            TOPIC_HEADER,
            (size_header, "3000000"),
            (sha256_header, "abc"),
        ];
        let input = recorder_input(QueueTopic::Answers, &headers);
        let message = input.inbound_message().unwrap();
        assert_eq!(message.payload_size_bytes(), 3_000_000, "{size_header}");
        assert_eq!(message.payload_sha256(), "abc", "{sha256_header}");
        assert!(matches!(
            input,
            RecorderInput::Message {
                from_answers_topic: true,
                position: None,
                ..
            }
        ));
    }
}

#[test]
fn operator_replay_header_is_read_by_its_current_and_deprecated_name() {
    let is_operator_replay = |headers: &[(&str, &str)]| {
        let input = recorder_input(QueueTopic::Ingress, headers);
        input.inbound_message().unwrap().is_operator_replay
    };
    for header_name in ["operator_replay", "again"] {
        assert!(
            is_operator_replay(&[TOPIC_HEADER, (header_name, "true")]),
            "{header_name}"
        );
    }
    assert!(!is_operator_replay(&[TOPIC_HEADER]));
}

#[test]
fn slow_topic_has_presence_messages_with_a_position_and_heartbeats_without_one() {
    let data_topic = ("topic", "redhat/insights/me/data/out");
    for (header, is_heartbeat) in [(TOPIC_HEADER, false), (data_topic, true)] {
        let input = recorder_input(QueueTopic::Slow, &[header]);
        let RecorderInput::Message {
            position,
            from_answers_topic,
            ..
        } = input
        else {
            panic!("{input:?}");
        };
        assert_eq!(from_answers_topic, is_heartbeat, "{header:?}");
        assert_eq!(position.is_none(), is_heartbeat, "{header:?}");
    }
}
