//! Answers of clients to tracked messages.

use domain::{MessageFailure, MessageId, MessageState};
use store::{AnswerContent, MessageAnswer, PresenceBatch, SendOutcome, TrackedMessage};
use test_support::stores::TestStore;

use super::messages::message_id;
use crate::fixtures::{answer, insert_message, org, record_online, timestamp_at, upsert_for_org};

async fn record(store: &TestStore, answers: Vec<MessageAnswer>) {
    let batch = PresenceBatch {
        answers,
        ..PresenceBatch::default()
    };
    let recorded = store
        .presence
        .record_batch(&batch, &[], timestamp_at(100))
        .await;
    recorded.unwrap();
}

async fn find(store: &TestStore, message: &str) -> TrackedMessage {
    let id = MessageId::new(message).unwrap();
    let found = store.messages.find_message(&org("1"), &id).await;
    found.unwrap().unwrap()
}

async fn acknowledge(store: &TestStore, message: &str) -> Option<MessageState> {
    let id = MessageId::new(message).unwrap();
    let outcome = SendOutcome::Acknowledged;
    let stored = store
        .messages
        .store_send_outcome(&id, outcome, timestamp_at(50));
    stored.await.unwrap()
}

async fn message_event_types(store: &TestStore) -> Vec<String> {
    store.events.sequence_events(1000).await.unwrap();
    let events = store.events.read_events(None, 0, 1000).await.unwrap();
    let types = events.into_iter().map(|event| event.event_type);
    types.filter(|it| it.starts_with("message.")).collect()
}

pub async fn first_answer_is_stored_and_later_answers_are_counted(store: &TestStore) {
    let message = message_id(1, 0);
    insert_message(store, &message, "1", "a", 0).await;
    acknowledge(store, &message).await;
    record(store, vec![answer("a", &message, r#"{"x":[1,null]}"#, 60)]).await;
    let answered = find(store, &message).await;
    assert_eq!(answered.state, MessageState::Answered);
    assert_eq!(answered.answered_at, Some(timestamp_at(60)));
    assert_eq!(answered.acknowledged_at, Some(timestamp_at(50)));
    let first = AnswerContent {
        json: r#"{"x":[1,null]}"#.into(),
        is_truncated: false,
    };
    assert_eq!(answered.answer, Some(first.clone()));
    let rejection = MessageAnswer {
        is_rejection: true,
        count: 3,
        ..answer("a", &message, "2", 70)
    };
    record(store, vec![rejection]).await;
    assert_eq!(
        find(store, &message).await,
        TrackedMessage {
            answer_count: 4,
            answer: Some(first),
            ..answered
        }
    );
    let expected = ["message.sent", "message.acknowledged", "message.answered"];
    assert_eq!(message_event_types(store).await, expected);
}

pub async fn rejection_and_truncation_are_stored(store: &TestStore) {
    let message = message_id(1, 0);
    insert_message(store, &message, "1", "a", 0).await;
    let rejection = MessageAnswer {
        is_rejection: true,
        content: AnswerContent {
            json: "\"\\u0000 text".into(),
            is_truncated: true,
        },
        count: 2,
        ..answer("a", &message, "", 60)
    };
    record(store, vec![rejection.clone()]).await;
    let rejected = find(store, &message).await;
    assert_eq!(rejected.state, MessageState::Rejected);
    assert_eq!(rejected.answer, Some(rejection.content));
    assert_eq!(rejected.answer_count, 2);
    let expected = ["message.sent", "message.rejected"];
    assert_eq!(message_event_types(store).await, expected);
}

pub async fn answer_before_the_acknowledgement_wins(store: &TestStore) {
    let message = message_id(1, 0);
    insert_message(store, &message, "1", "a", 0).await;
    record(store, vec![answer("a", &message, "1", 10)]).await;
    assert_eq!(acknowledge(store, &message).await, None);
    assert_eq!(find(store, &message).await.state, MessageState::Answered);
    // The message is no longer sending, so its lease has no effect.
    let failed = store.messages.fail_expired_sends(timestamp_at(100), 10);
    assert_eq!(failed.await.unwrap(), 0);
}

pub async fn answer_changes_every_state_except_cancelled(store: &TestStore) {
    for (number, state) in (0..).zip(MessageState::ALL) {
        let message = message_id(number, 0);
        insert_message(store, &message, "1", "a", 0).await;
        let state_name = state.as_str();
        store
            .execute(format!(
                "UPDATE messages SET state = '{state_name}' WHERE id = '{message}'"
            ))
            .await;
        record(store, vec![answer("a", &message, "1", 10)]).await;
        let expected = match state {
            MessageState::Cancelled => MessageState::Cancelled,
            _ => MessageState::Answered,
        };
        let stored = find(store, &message).await;
        assert_eq!(stored.state, expected, "{state_name}");
        assert_eq!(
            stored.answer_count,
            u64::from(expected == MessageState::Answered)
        );
    }
}

pub async fn answer_to_a_failed_message_removes_the_reason(store: &TestStore) {
    let message = message_id(1, 0);
    insert_message(store, &message, "1", "a", 0).await;
    let id = MessageId::new(&message).unwrap();
    let failed = SendOutcome::Failed(MessageFailure::BrokerTimeout);
    let stored = store
        .messages
        .store_send_outcome(&id, failed, timestamp_at(5));
    stored.await.unwrap();
    record(store, vec![answer("a", &message, "1", 10)]).await;
    let answered = find(store, &message).await;
    assert_eq!(answered.state, MessageState::Answered);
    assert_eq!(answered.reason, None);
}

pub async fn only_the_client_that_received_the_message_can_answer_it(store: &TestStore) {
    let message = message_id(1, 0);
    insert_message(store, &message, "1", "a", 0).await;
    let answers = vec![
        answer("b", &message, "1", 10),
        answer("a", &message_id(9, 0), "1", 10),
    ];
    record(store, answers).await;
    let stored = find(store, &message).await;
    assert_eq!(stored.state, MessageState::Sending);
    assert_eq!(stored.answer_count, 0);
}

pub async fn client_in_another_organization_cannot_answer(store: &TestStore) {
    let message = message_id(1, 0);
    insert_message(store, &message, "1", "a", 0).await;
    record_online(store, vec![upsert_for_org("a", "2")]).await;
    record(store, vec![answer("a", &message, "1", 10)]).await;
    assert_eq!(find(store, &message).await.state, MessageState::Sending);
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    record(store, vec![answer("a", &message, "1", 20)]).await;
    assert_eq!(find(store, &message).await.state, MessageState::Answered);
}

pub async fn answers_of_a_batch_change_each_message(store: &TestStore) {
    let ids: Vec<String> = (0..500).map(|number| message_id(number, 0)).collect();
    for message in &ids[..20] {
        insert_message(store, message, "1", "a", 0).await;
    }
    let answers = ids.iter().map(|message| answer("a", message, "1", 10));
    record(store, answers.collect()).await;
    for message in &ids[..20] {
        assert_eq!(find(store, message).await.state, MessageState::Answered);
    }
}
