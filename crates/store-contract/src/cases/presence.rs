//! Online messages, offline messages and the stored state of a client.

use domain::{ClientId, OrgId};
use serde_json::json;
use store::{PageRequest, PresenceBatch, QueuePosition, TenantChange};
use test_support::stores::TestStore;

use crate::fixtures::{
    client, connection_end, count_for_org, find_for_org_1, load_client_state, org, received_at,
    record_heartbeat, record_offline, record_online, tenant, timestamp_at, upsert, upsert_for_org,
};

pub async fn second_online_message_replaces_all_values(store: &TestStore) {
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    let mut second = upsert_for_org("a", "2");
    second.info.tags = json!({"new": "yes"});
    second.info.client_version = "2".into();
    second.topic_prefix = "qa/insights".into();
    second.message_id = None;
    second.message_sent_at = timestamp_at(5);
    record_online(store, vec![second.clone()]).await;
    assert_eq!(find_for_org_1(store, "a").await, None);
    let found = store
        .connections
        .find_connection_for_org(&org("2"), &client("a"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(found.info, second.info);
    assert_eq!(found.topic_prefix, "qa/insights");
    assert_eq!(found.message_id, None);
    assert_eq!(found.message_sent_at, timestamp_at(5));
}

pub async fn offline_message_moves_the_client_to_disconnected_clients(store: &TestStore) {
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    record_offline(store, &["a", "unknown"], 2).await;
    assert_eq!(find_for_org_1(store, "a").await, None);
    assert_eq!(count_for_org(store, "1").await, 0);
    let states = store
        .presence
        .load_client_states(&[client("a"), client("unknown")])
        .await
        .unwrap();
    assert_eq!(states.len(), 1);
    let state = &states[&client("a")];
    assert_eq!(state.connection, None);
    let disconnect = state.disconnect.as_ref().unwrap();
    assert_eq!(disconnect.tenant, Some(tenant("1")));
    assert_eq!(disconnect.message_id.as_ref().unwrap().as_str(), "m1");
    assert_eq!(disconnect.received_at, received_at(2));
}

pub async fn online_message_removes_the_client_from_disconnected_clients(store: &TestStore) {
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    record_offline(store, &["a"], 2).await;
    record_online(
        store,
        vec![upsert("a", TenantChange::NotFound(timestamp_at(3)))],
    )
    .await;
    let state = load_client_state(store, "a").await;
    assert_eq!(state.disconnect, None);
    assert_eq!(state.connection.unwrap().tenant, None);
}

pub async fn tenantless_client_is_stored_but_not_found_for_any_organization(store: &TestStore) {
    let upserts = vec![
        upsert("not-found", TenantChange::NotFound(timestamp_at(1))),
        upsert("pending", TenantChange::PendingLookup),
    ];
    record_online(store, upserts).await;
    for name in ["not-found", "pending"] {
        let stored = load_client_state(store, name).await.connection.unwrap();
        assert_eq!(stored.tenant, None);
        assert_eq!(stored.message_id.as_ref().unwrap().as_str(), "m1");
        assert_eq!(find_for_org_1(store, name).await, None);
    }
    // An `OrgId` cannot be empty. Therefore no organization matches the empty `org_id` of a
    // tenantless client.
    assert!(OrgId::new("").is_err());
}

pub async fn tenant_change_keep_preserves_the_stored_tenant(store: &TestStore) {
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    record_online(store, vec![upsert("a", TenantChange::Keep(tenant("1")))]).await;
    assert_eq!(
        find_for_org_1(store, "a").await.unwrap().tenant,
        tenant("1")
    );
}

pub async fn batch_of_1000_clients_is_written(store: &TestStore) {
    let names: Vec<String> = (0..1000).map(|n| format!("many-{n:04}")).collect();
    let upserts = |tag: &str| {
        names
            .iter()
            .map(|name| {
                let mut upsert = upsert_for_org(name, "1");
                upsert.info.tags = json!({ "tag": tag });
                upsert
            })
            .collect::<Vec<_>>()
    };
    record_online(store, upserts("one")).await;
    record_online(store, upserts("two")).await;
    let page = store
        .connections
        .list_connections_for_org(&org("1"), &PageRequest::at_offset(0, 5000))
        .await
        .unwrap();
    assert_eq!(page.total_count, 1000);
    assert!(
        page.connections
            .iter()
            .all(|c| c.info.tags == json!({"tag": "two"}))
    );
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let clients: Vec<ClientId> = names.iter().map(|name| client(name)).collect();
    assert_eq!(
        store
            .presence
            .load_client_states(&clients)
            .await
            .unwrap()
            .len(),
        1000
    );
    record_offline(store, &names, 2).await;
    assert_eq!(count_for_org(store, "1").await, 0);
}

pub async fn empty_batch_is_accepted(store: &TestStore) {
    store
        .presence
        .record_batch(&PresenceBatch::default(), &[], timestamp_at(0))
        .await
        .unwrap();
    assert!(
        store
            .presence
            .load_client_states(&[])
            .await
            .unwrap()
            .is_empty()
    );
    store.maintenance.ping().await.unwrap();
}

pub async fn queue_positions_are_stored(store: &TestStore) {
    let position = |offset| {
        Some(QueuePosition {
            topic: Some(-5),
            partition: 3,
            offset,
        })
    };
    let mut upsert = upsert_for_org("a", "1");
    upsert.received_at.position = position(7);
    record_online(store, vec![upsert]).await;
    let stored = load_client_state(store, "a").await.connection.unwrap();
    assert_eq!(stored.received_at.position, position(7));
    let mut connection_end = connection_end("a", 2);
    connection_end.received_at.position = position(8);
    let batch = PresenceBatch {
        connection_ends: vec![connection_end],
        ..PresenceBatch::default()
    };
    store
        .presence
        .record_batch(&batch, &[], timestamp_at(2))
        .await
        .unwrap();
    let disconnect = load_client_state(store, "a").await.disconnect.unwrap();
    assert_eq!(disconnect.received_at.position, position(8));
    record_heartbeat(store, "a", 3, None).await;
    let stored = load_client_state(store, "a").await.connection.unwrap();
    assert_eq!(stored.received_at.position, position(8));
}
