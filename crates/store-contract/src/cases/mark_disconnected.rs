//! The disconnect of a client by a command of the API.

use test_support::stores::TestStore;

use crate::fixtures::{
    client, find_for_org_1, load_client_state, received_at, record_heartbeat, record_offline,
    record_online, tenant, timestamp_at, upsert_for_org,
};

async fn mark_disconnected(store: &TestStore, client_id: &str, second: i64) -> bool {
    store
        .connections
        .mark_disconnected(&client(client_id), timestamp_at(second))
        .await
        .unwrap()
}

pub async fn mark_disconnected_ends_the_connection(store: &TestStore) {
    record_online(
        store,
        vec![upsert_for_org("a", "1"), upsert_for_org("b", "1")],
    )
    .await;
    assert!(mark_disconnected(store, "a", 5).await);
    assert_eq!(find_for_org_1(store, "a").await, None);
    assert!(find_for_org_1(store, "b").await.is_some());
    let disconnect = load_client_state(store, "a").await.disconnect.unwrap();
    assert_eq!(disconnect.received_at, received_at(5));
    assert_eq!(disconnect.tenant, Some(tenant("1")));
    assert!(!mark_disconnected(store, "a", 6).await);
    assert!(!mark_disconnected(store, "unknown", 6).await);
}

pub async fn mark_disconnected_does_not_undo_a_later_presence_message(store: &TestStore) {
    let mut online = upsert_for_org("a", "1");
    online.received_at = received_at(6);
    record_online(store, vec![online]).await;
    let before = load_client_state(store, "a").await;
    assert!(!mark_disconnected(store, "a", 5).await);
    assert_eq!(load_client_state(store, "a").await, before);
    // A later offline message that a heartbeat overruled is a later presence message, too.
    record_heartbeat(store, "a", 9, None).await;
    record_offline(store, &["a"], 8).await;
    let before = load_client_state(store, "a").await;
    assert!(!mark_disconnected(store, "a", 7).await);
    assert_eq!(load_client_state(store, "a").await, before);
    record_offline(store, &["a"], 10).await;
    let before = load_client_state(store, "a").await;
    assert!(!mark_disconnected(store, "a", 9).await);
    assert_eq!(load_client_state(store, "a").await, before);
}

pub async fn mark_disconnected_keeps_a_client_with_a_later_heartbeat(store: &TestStore) {
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    record_heartbeat(store, "a", 6, None).await;
    assert!(!mark_disconnected(store, "a", 5).await);
    let stored = load_client_state(store, "a").await.connection.unwrap();
    assert!(stored.offline_message_overruled);
    assert_eq!(stored.received_at, received_at(5));
    assert_eq!(stored.last_heartbeat_at, Some(received_at(6)));
    assert!(mark_disconnected(store, "a", 7).await);
}

pub async fn heartbeat_after_the_disconnect_restores_the_client(store: &TestStore) {
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    mark_disconnected(store, "a", 5).await;
    record_heartbeat(store, "a", 5, None).await;
    assert_eq!(find_for_org_1(store, "a").await, None);
    record_heartbeat(store, "a", 6, None).await;
    assert!(find_for_org_1(store, "a").await.is_some());
}

pub async fn mark_disconnected_moves_the_disconnect_time_of_a_disconnected_client(
    store: &TestStore,
) {
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    record_offline(store, &["a"], 2).await;
    mark_disconnected(store, "a", 5).await;
    record_heartbeat(store, "a", 4, None).await;
    assert_eq!(find_for_org_1(store, "a").await, None);
}
