//! Idempotency keys.

use std::time::Duration;

use domain::MessageId;
use store::{IdempotencyKey, IdempotentRequest, NewMessage, StoredResponse};
use test_support::stores::TestStore;

use super::messages::message_id;
use crate::fixtures::{client, org, tenant, timestamp_at};

fn request(caller: &str, hash: &str) -> IdempotentRequest {
    IdempotentRequest {
        key: IdempotencyKey {
            org: org("1"),
            caller: caller.into(),
            key: "k".into(),
        },
        request_hash: hash.into(),
        max_duration: Duration::from_hours(1),
    }
}

fn id(number: u32) -> MessageId {
    MessageId::new(&message_id(number, 0)).unwrap()
}

async fn insert(store: &TestStore, number: u32, request: &IdempotentRequest) -> bool {
    let message = NewMessage {
        id: id(number),
        sender: tenant("1"),
        caller: "key".into(),
        client_id: client("a"),
        client_org: org("1"),
        directive: "echo".into(),
        created_at: timestamp_at(0),
    };
    let lease = Duration::from_secs(15);
    let messages = &store.messages;
    let inserted = messages.insert_sending_once(&message, lease, request).await;
    inserted.unwrap()
}

async fn is_stored(store: &TestStore, number: u32) -> bool {
    let found = store.messages.find_message(&org("1"), &id(number)).await;
    found.unwrap().is_some()
}

async fn expire(store: &TestStore, column: &str) {
    let past = store.time_literal(timestamp_at(0));
    store
        .execute(format!("UPDATE idempotency_keys SET {column} = {past}"))
        .await;
}

pub async fn key_is_used_once_by_each_caller(store: &TestStore) {
    let first = request("a", "h");
    assert!(insert(store, 1, &first).await);
    assert!(!insert(store, 2, &request("a", "other")).await);
    assert!(is_stored(store, 1).await);
    assert!(!is_stored(store, 2).await);
    assert!(insert(store, 3, &request("b", "h")).await);
    let mut other_org = request("a", "h");
    other_org.key.org = org("2");
    assert!(insert(store, 4, &other_org).await);
    let stored = store.idempotency.find_key(&first.key).await;
    let stored = stored.unwrap().unwrap();
    assert_eq!(
        (stored.request_hash.as_str(), &stored.message_id),
        ("h", &id(1))
    );
    assert!(stored.is_in_progress);
    assert_eq!(stored.response, None);
}

pub async fn concurrent_requests_with_a_key_store_one_message(store: &TestStore) {
    let request = request("a", "h");
    let inserted = futures::future::join_all((0..8).map(|number| insert(store, number, &request)));
    let inserted = inserted.await;
    assert_eq!(inserted.iter().filter(|is_first| **is_first).count(), 1);
    for (number, is_first) in (0..).zip(inserted) {
        assert_eq!(is_stored(store, number).await, is_first);
    }
}

pub async fn first_response_is_stored(store: &TestStore) {
    let request = request("a", "h");
    insert(store, 1, &request).await;
    let store_response = async |number, status| {
        let response = StoredResponse {
            status,
            body: format!("{{\"status\": {status}}}"),
        };
        let keys = &store.idempotency;
        let id = id(number);
        let stored = keys.store_response(&request.key, &id, &response);
        stored.await.unwrap();
    };
    let response = async || {
        let stored = store.idempotency.find_key(&request.key).await;
        stored.unwrap().unwrap().response
    };
    // The key belongs to another message.
    store_response(2, 500).await;
    assert_eq!(response().await, None);
    store_response(1, 201).await;
    store_response(1, 504).await;
    let expected = StoredResponse {
        status: 201,
        body: r#"{"status": 201}"#.into(),
    };
    assert_eq!(response().await, Some(expected));
}

pub async fn deleted_and_expired_keys_can_be_used_again(store: &TestStore) {
    let request = request("a", "h");
    insert(store, 1, &request).await;
    let keys = &store.idempotency;
    keys.delete_key(&request.key, &id(9)).await.unwrap();
    assert!(!insert(store, 2, &request).await);
    keys.delete_key(&request.key, &id(1)).await.unwrap();
    assert!(insert(store, 3, &request).await);
    expire(store, "in_progress_until").await;
    let stored = keys.find_key(&request.key).await.unwrap().unwrap();
    assert!(!stored.is_in_progress);
    expire(store, "expires_at").await;
    assert_eq!(keys.find_key(&request.key).await.unwrap(), None);
    assert!(insert(store, 4, &request).await);
    let stored = keys.find_key(&request.key).await.unwrap().unwrap();
    assert_eq!(stored.message_id, id(4));
    assert!(stored.is_in_progress);
}

pub async fn expired_keys_are_deleted_in_chunks(store: &TestStore) {
    for (number, caller) in (0..).zip(["a", "b", "c"]) {
        insert(store, number, &request(caller, "h")).await;
    }
    let keys = &store.idempotency;
    assert_eq!(keys.delete_expired_keys(10).await.unwrap(), 0);
    expire(store, "expires_at").await;
    assert_eq!(keys.delete_expired_keys(2).await.unwrap(), 2);
    assert_eq!(keys.delete_expired_keys(2).await.unwrap(), 1);
}
