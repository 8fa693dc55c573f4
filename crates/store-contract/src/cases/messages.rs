//! Tracked messages: states, lists, isolation, leases and retention.

use std::time::Duration;

use domain::{MessageFailure, MessageId, MessageState};
use store::{CancelOutcome, MessageFilter, NewMessage, SendOutcome, TrackedMessage};
use test_support::stores::TestStore;

use crate::fixtures::{client, insert_message, org, tenant, timestamp_at};

/// Returns the id of message number `number` that was created at a second.
pub(crate) fn message_id(number: u32, second: i64) -> String {
    let milliseconds = timestamp_at(second).as_millisecond();
    let time = format!("{milliseconds:012x}");
    format!("{}-{}-7000-8000-{number:012x}", &time[..8], &time[8..])
}

fn id(text: &str) -> MessageId {
    MessageId::new(text).unwrap()
}

async fn find(store: &TestStore, org_id: &str, message: &str) -> Option<TrackedMessage> {
    let found = store
        .messages
        .find_message(&org(org_id), &id(message))
        .await;
    found.unwrap()
}

async fn store_outcome(
    store: &TestStore,
    message: &str,
    outcome: SendOutcome,
    second: i64,
) -> Option<MessageState> {
    let at = timestamp_at(second);
    let stored = store
        .messages
        .store_send_outcome(&id(message), outcome, at)
        .await;
    stored.unwrap()
}

/// Returns the types of all events, in their order.
async fn event_types(store: &TestStore) -> Vec<String> {
    store.events.sequence_events(1000).await.unwrap();
    let events = store.events.read_events(None, 0, 1000).await.unwrap();
    events.into_iter().map(|event| event.event_type).collect()
}

/// Expires the leases of all messages.
async fn expire_leases(store: &TestStore) {
    let past = store.time_literal(timestamp_at(0));
    store
        .execute(format!("UPDATE messages SET lease_until = {past}"))
        .await;
}

pub async fn acknowledged_message_has_its_times_and_events(store: &TestStore) {
    let message = message_id(1, 10);
    insert_message(store, &message, "1", "a", 10).await;
    let stored = find(store, "1", &message).await.unwrap();
    assert_eq!(
        stored,
        TrackedMessage {
            id: id(&message),
            client_id: client("a"),
            caller: "key".into(),
            directive: "echo".into(),
            state: MessageState::Sending,
            reason: None,
            bulk_id: None,
            created_at: timestamp_at(10),
            sent_at: Some(timestamp_at(10)),
            acknowledged_at: None,
            answered_at: None,
            ended_at: None,
            expires_at: None,
            attempts: 1,
            may_be_duplicate: false,
            answer: None,
            answer_count: 0,
        }
    );
    let outcome = store_outcome(store, &message, SendOutcome::Acknowledged, 11).await;
    assert_eq!(outcome, Some(MessageState::Acknowledged));
    let acknowledged = find(store, "1", &message).await.unwrap();
    assert_eq!(
        acknowledged,
        TrackedMessage {
            state: MessageState::Acknowledged,
            acknowledged_at: Some(timestamp_at(11)),
            ..stored
        }
    );
    assert_eq!(
        event_types(store).await,
        ["message.sent", "message.acknowledged"]
    );
    let events = store.events.read_events(Some(&org("1")), 0, 10).await;
    let event = events.unwrap().pop().unwrap();
    assert_eq!(event.client_id, client("a"));
    assert_eq!(event.tenant, tenant("1"));
    assert_eq!(event.at, timestamp_at(11));
    let expected = serde_json::json!({
        "message_id": message, "directive": "echo", "state": "acknowledged",
        "reason": null, "bulk_id": null,
    });
    assert_eq!(event.data, expected);
}

pub async fn states_of_a_message_only_move_forward(store: &TestStore) {
    let timeout = SendOutcome::Failed(MessageFailure::BrokerTimeout);
    let unavailable = SendOutcome::Failed(MessageFailure::BrokerUnavailable);
    let late = message_id(1, 0);
    insert_message(store, &late, "1", "a", 0).await;
    assert_eq!(
        store_outcome(store, &late, timeout, 1).await,
        Some(MessageState::Failed)
    );
    let failed = find(store, "1", &late).await.unwrap();
    assert_eq!(failed.reason.as_deref(), Some("broker-timeout"));
    assert_eq!(failed.ended_at, Some(timestamp_at(1)));
    assert_eq!(store_outcome(store, &late, unavailable, 2).await, None);
    // A late acknowledgement.
    let acknowledged = store_outcome(store, &late, SendOutcome::Acknowledged, 3).await;
    assert_eq!(acknowledged, Some(MessageState::Acknowledged));
    let message = find(store, "1", &late).await.unwrap();
    assert_eq!((message.reason, message.ended_at), (None, None));
    for outcome in [timeout, unavailable, SendOutcome::Acknowledged] {
        assert_eq!(store_outcome(store, &late, outcome, 4).await, None);
    }
    // The broker cannot acknowledge a message that it did not receive.
    let not_sent = message_id(2, 0);
    insert_message(store, &not_sent, "1", "a", 0).await;
    store_outcome(store, &not_sent, unavailable, 1).await;
    let outcome = store_outcome(store, &not_sent, SendOutcome::Acknowledged, 2).await;
    assert_eq!(outcome, None);
    let message = find(store, "1", &not_sent).await.unwrap();
    assert_eq!(message.state, MessageState::Failed);
    let unknown = message_id(9, 0);
    assert_eq!(store_outcome(store, &unknown, timeout, 1).await, None);
}

pub async fn message_is_visible_only_to_the_organization_of_its_sender(store: &TestStore) {
    let message = NewMessage {
        id: id(&message_id(1, 0)),
        sender: tenant("1"),
        caller: "key".into(),
        client_id: client("satellite"),
        client_org: org("2"),
        directive: "echo".into(),
        created_at: timestamp_at(0),
    };
    let lease = Duration::from_secs(15);
    store
        .messages
        .insert_sending(&message, lease)
        .await
        .unwrap();
    let text = message.id.as_str();
    assert!(find(store, "1", text).await.is_some());
    assert!(find(store, "2", text).await.is_none());
    let list = async |org_id| {
        let filter = MessageFilter::default();
        let org = org(org_id);
        let page = store.messages.list_messages(&org, &filter, None, 10);
        page.await.unwrap().messages.len()
    };
    assert_eq!((list("1").await, list("2").await), (1, 0));
    let cancel = async |org_id| {
        let messages = &store.messages;
        let org = org(org_id);
        let cancelled = messages.cancel_message(&org, &message.id, timestamp_at(1));
        cancelled.await.unwrap()
    };
    assert_eq!(cancel("2").await, CancelOutcome::NotFound);
    let not_queued = CancelOutcome::NotQueued(MessageState::Sending);
    assert_eq!(cancel("1").await, not_queued);
    store.events.sequence_events(100).await.unwrap();
    let events = store.events.read_events(Some(&org("2")), 0, 10).await;
    assert_eq!(events.unwrap(), []);
}

pub async fn queued_message_is_cancelled(store: &TestStore) {
    let message = message_id(1, 0);
    insert_message(store, &message, "1", "a", 0).await;
    store.execute("UPDATE messages SET state = 'queued'").await;
    let cancel = async || {
        let messages = &store.messages;
        let (org, id) = (org("1"), id(&message));
        let cancelled = messages.cancel_message(&org, &id, timestamp_at(5));
        cancelled.await.unwrap()
    };
    assert_eq!(cancel().await, CancelOutcome::Cancelled);
    let cancelled = find(store, "1", &message).await.unwrap();
    assert_eq!(cancelled.state, MessageState::Cancelled);
    assert_eq!(cancelled.ended_at, Some(timestamp_at(5)));
    let not_queued = CancelOutcome::NotQueued(MessageState::Cancelled);
    assert_eq!(cancel().await, not_queued);
    let types = event_types(store).await;
    assert_eq!(types.last().map(String::as_str), Some("message.cancelled"));
}

pub async fn messages_are_listed_newest_first_with_filters_and_pages(store: &TestStore) {
    let ids: Vec<String> = (0..5)
        .map(|number| message_id(number, i64::from(number)))
        .collect();
    for (number, message) in ids.iter().enumerate() {
        let client_id = if number % 2 == 0 { "even" } else { "odd" };
        insert_message(
            store,
            message,
            "1",
            client_id,
            i64::try_from(number).unwrap(),
        )
        .await;
    }
    insert_message(store, &message_id(9, 9), "2", "even", 9).await;
    store_outcome(store, &ids[1], SendOutcome::Acknowledged, 9).await;
    let list = async |filter: MessageFilter, after: Option<&str>, limit| {
        let after = after.map(id);
        let messages = &store.messages;
        let org = org("1");
        let page = messages.list_messages(&org, &filter, after.as_ref(), limit);
        let page = page.await.unwrap();
        let listed: Vec<String> = page.messages.iter().map(|it| it.id.to_string()).collect();
        (listed, page.next_after.map(|it| it.to_string()))
    };
    let newest_first = |numbers: &[usize]| -> Vec<String> {
        numbers.iter().map(|number| ids[*number].clone()).collect()
    };
    let all = MessageFilter::default();
    assert_eq!(
        list(all.clone(), None, 10).await,
        (newest_first(&[4, 3, 2, 1, 0]), None)
    );
    let (page, cursor) = list(all.clone(), None, 2).await;
    assert_eq!(page, newest_first(&[4, 3]));
    let (page, cursor) = list(all.clone(), cursor.as_deref(), 2).await;
    assert_eq!(page, newest_first(&[2, 1]));
    assert_eq!(
        list(all.clone(), cursor.as_deref(), 2).await,
        (newest_first(&[0]), None)
    );
    let to_client = MessageFilter {
        client_id: Some(client("odd")),
        ..all.clone()
    };
    assert_eq!(list(to_client, None, 10).await.0, newest_first(&[3, 1]));
    let acknowledged = MessageFilter {
        state: Some(MessageState::Acknowledged),
        ..all.clone()
    };
    assert_eq!(list(acknowledged, None, 10).await.0, newest_first(&[1]));
    let other_directive = MessageFilter {
        directive: Some("other".into()),
        ..all.clone()
    };
    assert_eq!(list(other_directive, None, 10).await, (Vec::new(), None));
    let recent = MessageFilter {
        created_after: Some(timestamp_at(2)),
        ..all.clone()
    };
    assert_eq!(list(recent, None, 10).await.0, newest_first(&[4, 3]));
    // A limit of 0 does not change the position.
    assert_eq!(
        list(all, Some(&ids[4]), 0).await,
        (Vec::new(), Some(ids[4].clone()))
    );
}

pub async fn attempt_with_an_expired_lease_fails(store: &TestStore) {
    let (expired, current) = (message_id(1, 0), message_id(2, 0));
    insert_message(store, &expired, "1", "a", 0).await;
    let fail = async |limit| {
        let failed = store.messages.fail_expired_sends(timestamp_at(20), limit);
        failed.await.unwrap()
    };
    assert_eq!(fail(10).await, 0);
    expire_leases(store).await;
    insert_message(store, &current, "1", "a", 0).await;
    assert_eq!(fail(10).await, 1);
    assert_eq!(fail(10).await, 0);
    let failed = find(store, "1", &expired).await.unwrap();
    assert_eq!(failed.state, MessageState::Failed);
    assert_eq!(failed.reason.as_deref(), Some("broker-timeout"));
    assert!(failed.may_be_duplicate);
    let current = find(store, "1", &current).await.unwrap();
    assert_eq!(current.state, MessageState::Sending);
    let types = event_types(store).await;
    assert_eq!(types, ["message.sent", "message.sent", "message.failed"]);
}

pub async fn expired_leases_are_processed_in_chunks(store: &TestStore) {
    for number in 0..5 {
        insert_message(store, &message_id(number, 0), "1", "a", 0).await;
    }
    expire_leases(store).await;
    for expected in [2, 2, 1, 0] {
        let failed = store.messages.fail_expired_sends(timestamp_at(20), 2).await;
        assert_eq!(failed.unwrap(), expected);
    }
}

pub async fn final_messages_are_deleted_after_their_retention(store: &TestStore) {
    for number in 0..4 {
        insert_message(store, &message_id(number, 0), "1", "a", 0).await;
    }
    // The last message is still being sent.
    for number in 0..3 {
        let second = i64::from(number) * 10;
        let message = message_id(number, 0);
        store_outcome(store, &message, SendOutcome::Acknowledged, second).await;
    }
    let delete = async |second, limit| {
        let messages = &store.messages;
        let deleted = messages.delete_messages_before(timestamp_at(second), limit);
        deleted.await.unwrap()
    };
    assert_eq!(delete(0, 10).await, 0);
    assert_eq!(delete(15, 1).await, 1);
    assert!(find(store, "1", &message_id(0, 0)).await.is_none());
    assert_eq!(delete(15, 10).await, 1);
    assert_eq!(delete(1000, 10).await, 1);
    assert_eq!(delete(1000, 10).await, 0);
    let sending = find(store, "1", &message_id(3, 0)).await.unwrap();
    assert_eq!(sending.state, MessageState::Sending);
}

pub async fn oldest_final_messages_above_the_limit_of_an_organization_are_deleted(
    store: &TestStore,
) {
    for number in 0..6 {
        insert_message(store, &message_id(number, 0), "1", "a", 0).await;
        if number > 0 {
            let message = message_id(number, 0);
            store_outcome(store, &message, SendOutcome::Acknowledged, 1).await;
        }
    }
    insert_message(store, &message_id(9, 0), "2", "a", 0).await;
    let trim = async |max, limit| store.messages.trim_messages(max, limit).await.unwrap();
    assert_eq!(trim(6, 10).await, 0);
    assert_eq!(trim(3, 2).await, 2);
    assert_eq!(trim(3, 10).await, 1);
    assert_eq!(trim(3, 10).await, 0);
    // The oldest message is not final.
    let mut remaining = Vec::new();
    for number in 0..6 {
        if find(store, "1", &message_id(number, 0)).await.is_some() {
            remaining.push(number);
        }
    }
    assert_eq!(remaining, [0, 4, 5]);
    assert_eq!(trim(0, 10).await, 2);
    assert_eq!(trim(0, 10).await, 0);
}
