//! Converts Kafka messages to inputs of the recorder.

use crate::ingest::forward::parse_topic_from_client;
use crate::record::{QueuePosition, QueueTopic, RecorderInput};
use kafka::KafkaMessage;
use kafka::header::{self, deprecated};
use protocol::{InboundMessage, OriginalPayload, TopicScheme};

/// Converts a message that was read from `queue_topic`.
pub(super) fn to_recorder_input(
    queue_topic: QueueTopic,
    topic_scheme: &TopicScheme,
    kafka_message: &KafkaMessage,
) -> RecorderInput {
    let header_value = |name| kafka_message.headers.get(name).map_or("", String::as_str);
    let header_value_or_deprecated = |name, deprecated_name| match header_value(name) {
        "" => header_value(deprecated_name),
        value => value,
    };
    let received_at = header_value(header::RECEIVED_AT)
        .parse()
        .ok()
        .or(kafka_message.timestamp)
        .map(domain::clock::truncate_to_micros)
        .unwrap_or_default();
    let original_size = header_value_or_deprecated(header::TRUNCATED_FROM, deprecated::CUT_FROM);
    let original_sha256 =
        header_value_or_deprecated(header::TRUNCATED_SHA256, deprecated::CUT_SHA256);
    let truncated_from = original_size
        .parse()
        .ok()
        .map(|size_bytes| OriginalPayload {
            size_bytes,
            sha256: original_sha256.to_owned(),
        });
    let operator_replay_header =
        header_value_or_deprecated(header::OPERATOR_REPLAY, deprecated::AGAIN);
    let message = InboundMessage {
        topic: header_value(header::TOPIC).to_owned(),
        payload: kafka_message.payload.clone(),
        retained: header_value(header::RETAIN) == "true",
        is_operator_replay: operator_replay_header == "true",
        received_at,
        ingest_stamp: header_value(header::INGEST_STAMP).parse().ok(),
        truncated_from,
    };
    let Some(topic) = parse_topic_from_client(topic_scheme, &message.topic) else {
        return RecorderInput::UnknownTopic { message };
    };
    // The slow topic has the messages of both other topics.
    let from_answers_topic = match queue_topic {
        QueueTopic::Ingress => false,
        QueueTopic::Answers => true,
        QueueTopic::Slow => protocol::is_response_or_heartbeat(topic.channel, &message.payload),
    };
    let position = QueuePosition {
        topic: kafka_message.topic,
        partition: kafka_message.partition,
        offset: kafka_message.offset,
    };
    RecorderInput::Message {
        topic,
        message,
        position: (!from_answers_topic).then_some(position),
        from_answers_topic,
    }
}
