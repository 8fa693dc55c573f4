//! An input before it is written. It keeps only the part of a response that the recorder needs.

use bytes::Bytes;

use super::RecorderInput;
use super::answers::find_answer;
use protocol::{ClientMessage, InboundMessage, Rejection};
use service::{ByteBudget, ByteReservation};
use store::MessageAnswer;

/// The payload of a message up to this size is decoded by the writer. A larger response is decoded
/// when it is received, so that its payload does not stay in memory while it waits for the database.
const MAX_KEPT_RESPONSE_BYTES: usize = 4 * 1024;
/// Memory that an input needs in addition to its payload and topic.
const INPUT_OVERHEAD_BYTES: usize = 512;

/// An input whose memory is reserved in the message budget until the value is dropped.
#[derive(Debug)]
pub struct PreparedInput {
    pub(super) input: RecorderInput,
    /// The result of decoding the message. `None` if the writer decodes the message.
    pub(super) decoded: Option<Result<ClientMessage, Rejection>>,
    /// The answer that a large response contains. Its payload is already freed.
    pub(super) answer: Option<Box<MessageAnswer>>,
    pub(super) reservation: ByteReservation,
}

impl PreparedInput {
    pub(super) fn new(mut input: RecorderInput, message_budget: &ByteBudget) -> Self {
        let mut answer = None;
        let decoded = decode_large_response(&mut input, &mut answer);
        let answer_bytes = answer
            .as_ref()
            .map_or(0, |answer| answer.content.json.capacity());
        let size_bytes = INPUT_OVERHEAD_BYTES + input.size_bytes() + answer_bytes;
        Self {
            input,
            decoded,
            answer,
            reservation: message_budget.reserve(size_bytes),
        }
    }

    /// Returns the approximate memory use of the input in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.reservation.bytes()
    }
}

/// Decodes a large response and frees its payload. Presence needs from a response only that the
/// client sent it. If the response answers a tracked message, `answer` gets its content. Returns `None`
/// for all other inputs.
fn decode_large_response(
    input: &mut RecorderInput,
    answer: &mut Option<Box<MessageAnswer>>,
) -> Option<Result<ClientMessage, Rejection>> {
    let RecorderInput::Message { topic, message, .. } = input else {
        return None;
    };
    if message.payload.len() <= MAX_KEPT_RESPONSE_BYTES
        || !protocol::is_response_or_heartbeat(topic.channel, &message.payload)
    {
        return None;
    }
    match protocol::decode(topic.channel, message) {
        Ok(ClientMessage::Response(response)) => {
            *answer = find_answer(topic, message, &response).map(Box::new);
            message.payload = Bytes::new();
            Some(Ok(ClientMessage::Heartbeat))
        }
        Ok(ClientMessage::Heartbeat) => {
            message.payload = Bytes::new();
            Some(Ok(ClientMessage::Heartbeat))
        }
        Ok(ClientMessage::Ignored) => {
            message.payload = Bytes::new();
            Some(Ok(ClientMessage::Ignored))
        }
        Ok(_) => None,
        Err(rejection) => {
            // The dead letter contains only the first bytes of a large payload.
            truncate_payload(message);
            Some(Err(rejection))
        }
    }
}

fn truncate_payload(message: &mut InboundMessage) {
    let complete_message = message.clone();
    *message = complete_message.with_truncated_payload();
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::{RejectReason, Timestamp};
    use protocol::{DialectSettings, TopicScheme};

    const BUDGET_BYTES: usize = 128 * 1024 * 1024;

    fn prepare(topic: &str, payload: Vec<u8>) -> (PreparedInput, ByteBudget) {
        let topics = TopicScheme::new(
            vec!["redhat/insights".to_owned()],
            &DialectSettings::default(),
        );
        let message = InboundMessage {
            topic: topic.to_owned(),
            payload: payload.into(),
            retained: false,
            is_operator_replay: false,
            is_last_will: None,
            is_takeover: false,
            received_at: Timestamp::UNIX_EPOCH,
            ingest_stamp: None,
            truncated_from: None,
        };
        let topic = topics.parse(topic).unwrap();
        let input = RecorderInput::non_kafka_message(topic, message);
        let budget = ByteBudget::new(BUDGET_BYTES);
        (PreparedInput::new(input, &budget), budget)
    }

    fn response(size: usize) -> Vec<u8> {
        let content = "x".repeat(size);
        format!(r#"{{"type":"data","directive":"echo","content":"{content}"}}"#).into_bytes()
    }

    #[test]
    fn payload_of_a_large_response_is_freed() {
        let (prepared, budget) = prepare("redhat/insights/a/data/out", response(1_000_000));
        assert_eq!(prepared.decoded, Some(Ok(ClientMessage::Heartbeat)));
        assert!(budget.used() < 1000, "{} bytes are reserved", budget.used());
        drop(prepared);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn large_answer_to_a_tracked_message_keeps_the_start_of_its_content() {
        let content = "x".repeat(1_000_000);
        let payload = format!(
            r#"{{"type":"data","response_to":"018f3c1e-7a2b-7c3d-8e4f-0123456789ab","content":"{content}"}}"#
        );
        let (prepared, budget) = prepare("redhat/insights/a/data/out", payload.into_bytes());
        assert_eq!(prepared.decoded, Some(Ok(ClientMessage::Heartbeat)));
        let answer = prepared.answer.as_ref().unwrap();
        assert!(answer.content.is_truncated);
        assert_eq!(answer.content.json.len(), store::MAX_ANSWER_BYTES);
        assert!(
            (65_536..200_000).contains(&budget.used()),
            "{}",
            budget.used()
        );
    }

    #[test]
    fn invalid_large_response_keeps_the_start_of_its_payload_and_the_original_size() {
        let mut payload = response(1_000_000);
        payload.pop();
        let size = payload.len() as u64;
        let (prepared, budget) = prepare("redhat/insights/a/data/out", payload);
        let rejection = prepared.decoded.as_ref().unwrap().as_ref().unwrap_err();
        assert_eq!(rejection.reason, RejectReason::InvalidJson);
        let message = prepared.input.inbound_message().unwrap();
        assert_eq!(message.payload_size_bytes(), size);
        assert!(budget.used() < 100_000, "{} bytes", budget.used());
    }

    #[test]
    fn presence_message_keeps_its_payload() {
        let payload = vec![b' '; 100_000];
        let (prepared, budget) = prepare("redhat/insights/a/control/out", payload);
        assert_eq!(prepared.decoded, None);
        assert!(budget.used() >= 100_000);
    }
}
