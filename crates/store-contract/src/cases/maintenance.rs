//! Client id lists, retention and counts.

use store::TenantChange;
use test_support::stores::TestStore;

use crate::fixtures::{
    client, org, record_offline, record_online, timestamp_at, upsert, upsert_for_org,
};

pub async fn client_ids_are_listed_in_ascending_order(store: &TestStore) {
    let upserts = ["b", "a", "c"].map(|name| upsert(name, TenantChange::PendingLookup));
    record_online(store, upserts.to_vec()).await;
    let first_page = store.maintenance.list_client_ids(None, 2).await.unwrap();
    assert_eq!(first_page, [client("a"), client("b")]);
    let second_page = store
        .maintenance
        .list_client_ids(first_page.last(), 2)
        .await
        .unwrap();
    assert_eq!(second_page, [client("c")]);
}

pub async fn clients_that_disconnected_before_a_time_are_deleted(store: &TestStore) {
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    record_offline(store, &["a"], 2).await;
    assert_eq!(delete_disconnected_before(store, 2, 10).await, 0);
    let states = store.presence.load_client_states(&[client("a")]).await;
    assert_eq!(states.unwrap().len(), 1);
    assert_eq!(delete_disconnected_before(store, 3, 10).await, 1);
    let states = store.presence.load_client_states(&[client("a")]).await;
    assert!(states.unwrap().is_empty());
}

pub async fn disconnected_clients_are_deleted_in_chunks_oldest_disconnect_first(store: &TestStore) {
    let names = ["a", "b", "c"];
    let upserts = names.map(|name| upsert_for_org(name, "1"));
    record_online(store, upserts.to_vec()).await;
    for (name, second) in [("b", 2), ("a", 3), ("c", 4)] {
        record_offline(store, &[name], second).await;
    }
    let remaining = async || {
        let states = store.presence.load_client_states(&names.map(client)).await;
        let mut remaining: Vec<_> = states.unwrap().into_keys().collect();
        remaining.sort_unstable();
        remaining
    };
    assert_eq!(delete_disconnected_before(store, 10, 2).await, 2);
    assert_eq!(remaining().await, [client("c")]);
    assert_eq!(delete_disconnected_before(store, 10, 2).await, 1);
    assert!(remaining().await.is_empty());
    assert_eq!(delete_disconnected_before(store, 10, 2).await, 0);
}

async fn delete_disconnected_before(store: &TestStore, second: i64, limit: u32) -> u64 {
    store
        .maintenance
        .delete_clients_disconnected_before(timestamp_at(second), limit)
        .await
        .unwrap()
}

pub async fn connections_are_counted_by_organization(store: &TestStore) {
    let upserts = vec![
        upsert_for_org("a", "1"),
        upsert_for_org("b", "2"),
        upsert_for_org("c", "2"),
        upsert_for_org("d", "3"),
        upsert("e", TenantChange::PendingLookup),
        upsert("f", TenantChange::NotFound(timestamp_at(0))),
    ];
    assert_eq!(
        store.maintenance.count_by_org(10).await.unwrap(),
        (vec![], 0)
    );
    record_online(store, upserts).await;
    let counts = [(org("2"), 2), (org("1"), 1), (org("3"), 1)];
    assert_eq!(
        store.maintenance.count_by_org(10).await.unwrap(),
        (counts.to_vec(), 2)
    );
    assert_eq!(
        store.maintenance.count_by_org(2).await.unwrap(),
        (counts[..2].to_vec(), 2)
    );
}
