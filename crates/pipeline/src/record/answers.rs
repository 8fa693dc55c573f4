//! Answers of clients to tracked messages.
//!
//! Only the ids of tracked messages are UUIDs of version 7. A response to any other message is
//! recognized by its `response_to`, and causes no query.

use std::collections::BTreeMap;

use domain::{ClientId, MessageId};
use protocol::{ClientResponse, ClientTopic, InboundMessage};
use store::{AnswerContent, MAX_ANSWER_BYTES, MessageAnswer};

/// Returns the answer to a tracked message. Returns `None` if the response cannot belong to a tracked
/// message.
pub(super) fn find_answer(
    topic: &ClientTopic,
    message: &InboundMessage,
    response: &ClientResponse,
) -> Option<MessageAnswer> {
    let (response_to, is_rejection) = match response {
        ClientResponse::Pong { response_to } | ClientResponse::Data { response_to, .. } => {
            (response_to, false)
        }
        ClientResponse::Error { response_to, .. } => (response_to, true),
    };
    let message_id = response_to.as_ref().filter(|id| id.may_be_tracked())?;
    let content = protocol::response_content(topic.channel, &message.payload, MAX_ANSWER_BYTES);
    Some(MessageAnswer {
        message_id: message_id.clone(),
        client_id: topic.client.clone(),
        is_rejection,
        content: AnswerContent {
            json: content.json,
            is_truncated: content.is_truncated,
        },
        received_at: message.received_at,
        count: 1,
    })
}

/// Merges the answers of each client to each message: keeps the first, and counts the others. The result
/// is ordered by client id and message id.
pub(super) fn merge_answers<'a>(
    answers: impl Iterator<Item = &'a MessageAnswer>,
) -> Vec<MessageAnswer> {
    let mut merged: BTreeMap<(&ClientId, &MessageId), MessageAnswer> = BTreeMap::new();
    for answer in answers {
        merged
            .entry((&answer.client_id, &answer.message_id))
            .and_modify(|first| first.count += answer.count)
            .or_insert_with(|| answer.clone());
    }
    merged.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::Timestamp;
    use protocol::{ClientMessage, DialectSettings, TopicScheme};

    const TRACKED_ID: &str = "018f3c1e-7a2b-7c3d-8e4f-0123456789ab";

    fn answer_of(topic: &str, payload: &str) -> Option<MessageAnswer> {
        let prefixes = vec!["redhat/insights".to_owned()];
        let topics = TopicScheme::new(prefixes, &DialectSettings::default());
        let topic = topics.parse(topic).unwrap();
        let message = InboundMessage {
            topic: String::new(),
            payload: payload.to_owned().into(),
            retained: false,
            is_operator_replay: false,
            is_last_will: Some(false),
            is_takeover: false,
            received_at: Timestamp::UNIX_EPOCH,
            ingest_stamp: None,
            truncated_from: None,
        };
        match protocol::decode(topic.channel, &message) {
            Ok(ClientMessage::Response(response)) => find_answer(&topic, &message, &response),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn responses_of_each_dialect_are_answers_or_rejections() {
        for (topic, payload, is_rejection, json) in [
            (
                "redhat/insights/a/data/out",
                r#"{"type":"data","response_to":"ID","content":[1, 2]}"#,
                false,
                "[1,2]",
            ),
            (
                "redhat/insights/a/control/out",
                r#"{"type":"event","response_to":"ID","content":"pong"}"#,
                false,
                "\"pong\"",
            ),
            (
                "redhat/insights/in/a",
                r#"{"type":"message","in_response_to":"ID","payload":{"x":1}}"#,
                false,
                r#"{"x":1}"#,
            ),
            (
                "redhat/insights/in/a",
                r#"{"type":"message-error","in_response_to":"ID","payload":{"details":"no"}}"#,
                true,
                r#"{"details":"no"}"#,
            ),
        ] {
            let answer = answer_of(topic, &payload.replace("ID", TRACKED_ID)).unwrap();
            assert_eq!(answer.message_id.as_str(), TRACKED_ID);
            assert_eq!(answer.client_id.as_str(), "a");
            assert_eq!(answer.is_rejection, is_rejection, "{payload}");
            assert_eq!(answer.content.json, json);
            let untracked_id = TRACKED_ID.replace("-7c", "-4c");
            assert_eq!(
                answer_of(topic, &payload.replace("ID", &untracked_id)),
                None
            );
        }
    }

    #[test]
    fn first_answer_is_kept_and_the_others_are_counted() {
        let answer = |client: &str, id: &str, json: &str| MessageAnswer {
            message_id: MessageId::new(id).unwrap(),
            client_id: ClientId::new(client).unwrap(),
            is_rejection: false,
            content: AnswerContent {
                json: json.to_owned(),
                is_truncated: false,
            },
            received_at: Timestamp::UNIX_EPOCH,
            count: 1,
        };
        let answers = [
            answer("b", "2", "1"),
            answer("b", "1", "2"),
            answer("a", "2", "3"),
            answer("b", "2", "4"),
        ];
        let merged = merge_answers(answers.iter());
        let summary: Vec<_> = merged
            .iter()
            .map(|it| (it.client_id.as_str(), it.content.json.as_str(), it.count))
            .collect();
        assert_eq!(summary, [("a", "3", 1), ("b", "2", 1), ("b", "1", 2)]);
    }
}
