//! Heartbeats, and their order relative to offline messages.

use store::TenantChange;
use test_support::stores::TestStore;

use crate::fixtures::{
    client, find_for_org_1, load_client_state, received_at, record_heartbeat, record_offline,
    record_online, tenant, timestamp_at, upsert, upsert_for_org,
};

pub async fn heartbeat_restores_a_disconnected_client(store: &TestStore) {
    let original = upsert_for_org("a", "1");
    record_online(store, vec![original.clone()]).await;
    record_online(
        store,
        vec![upsert("b", TenantChange::NotFound(timestamp_at(0)))],
    )
    .await;
    record_offline(store, &["a", "b"], 2).await;
    record_heartbeat(store, "a", 3, None).await;
    record_heartbeat(store, "b", 3, Some(TenantChange::Found(tenant("1")))).await;
    record_heartbeat(store, "unknown", 3, None).await;
    let found = find_for_org_1(store, "a").await.unwrap();
    assert_eq!(found.info, original.info);
    assert_eq!(found.tenant, tenant("1"));
    assert_eq!(found.message_id, original.message_id);
    assert_eq!(
        find_for_org_1(store, "b").await.unwrap().tenant,
        tenant("1")
    );
    let clients = [client("a"), client("b"), client("unknown")];
    assert_eq!(
        store
            .presence
            .load_client_states(&clients)
            .await
            .unwrap()
            .len(),
        2
    );
    let state = load_client_state(store, "a").await;
    let stored = state.connection.unwrap();
    assert!(stored.offline_message_overruled);
    assert_eq!(stored.last_heartbeat_at, Some(timestamp_at(3)));
    assert_eq!(stored.received_at, received_at(2));
    assert_eq!(state.disconnect, None);
    // The next online message clears the field `offline_message_overruled`.
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    let stored = load_client_state(store, "a").await.connection.unwrap();
    assert!(!stored.offline_message_overruled);
}

pub async fn heartbeat_before_the_offline_message_is_ignored(store: &TestStore) {
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    record_offline(store, &["a"], 2).await;
    record_heartbeat(store, "a", 2, None).await;
    assert_eq!(find_for_org_1(store, "a").await, None);
    // A later offline message of a disconnected client replaces the earlier offline message.
    record_offline(store, &["a"], 6).await;
    record_heartbeat(store, "a", 5, None).await;
    assert_eq!(find_for_org_1(store, "a").await, None);
    record_heartbeat(store, "a", 7, None).await;
    assert!(find_for_org_1(store, "a").await.is_some());
}

pub async fn offline_message_before_a_heartbeat_does_not_end_the_connection(store: &TestStore) {
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    record_heartbeat(store, "a", 5, None).await;
    record_offline(store, &["a"], 2).await;
    assert!(find_for_org_1(store, "a").await.is_some());
    let stored = load_client_state(store, "a").await.connection.unwrap();
    assert!(stored.offline_message_overruled);
    assert_eq!(stored.received_at, received_at(2));
    assert_eq!(stored.last_heartbeat_at, Some(timestamp_at(5)));
    record_offline(store, &["a"], 5).await;
    assert_eq!(find_for_org_1(store, "a").await, None);
    // An upsert can contain a heartbeat that is later than its online message.
    let mut with_heartbeat = upsert_for_org("a", "1");
    with_heartbeat.last_heartbeat_at = Some(timestamp_at(9));
    record_online(store, vec![with_heartbeat]).await;
    record_offline(store, &["a"], 2).await;
    assert!(find_for_org_1(store, "a").await.is_some());
}
