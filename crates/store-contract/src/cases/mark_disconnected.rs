//! The disconnect of a client by a command of the API.

use domain::{Connection, MessageId};
use store::{LookupOutcome, LookupReason, LookupResult};
use test_support::stores::TestStore;

use crate::fixtures::{
    find_for_org_1, load_client_state, received_at, record_heartbeat, record_offline,
    record_online, tenant, timestamp_at, upsert_for_org,
};

/// A second that is later than the clock of the database.
const FUTURE: i64 = 5_000_000_000;

async fn read_connection(store: &TestStore, client_id: &str) -> Connection {
    find_for_org_1(store, client_id).await.unwrap()
}

async fn mark_disconnected(store: &TestStore, connection: &Connection) -> bool {
    let marked = store.connections.mark_disconnected(connection).await;
    marked.unwrap()
}

/// Records an online message that was received at second 0, and reads the connection.
async fn connect(store: &TestStore, client_id: &str) -> Connection {
    record_online(store, vec![upsert_for_org(client_id, "1")]).await;
    read_connection(store, client_id).await
}

async fn reconnect(store: &TestStore, client_id: &str, message_id: Option<&str>, second: i64) {
    let mut online = upsert_for_org(client_id, "1");
    online.message_id = message_id.map(|id| MessageId::new(id).unwrap());
    online.received_at = received_at(second);
    record_online(store, vec![online]).await;
}

/// Runs the inventory refresh job for the only client.
async fn report_to_inventory(store: &TestStore) {
    let reason = LookupReason::InventoryRefresh {
        reported_before: timestamp_at(4),
    };
    let claimed = store
        .lookup_queue
        .claim_for_lookup(reason, 1, timestamp_at(4), timestamp_at(9))
        .await
        .unwrap();
    let result = LookupResult {
        client_id: claimed[0].client_id.clone(),
        row_version: claimed[0].row_version,
        outcome: LookupOutcome::Found {
            tenant: tenant("1"),
            reported_to_inventory_at: Some(timestamp_at(5)),
            inventory_eligible: true,
            report_failed: false,
        },
    };
    let saved = store
        .lookup_queue
        .save_lookup_results(&[result], timestamp_at(6))
        .await;
    assert_eq!(saved.unwrap(), 1);
}

pub async fn mark_disconnected_ends_the_connection(store: &TestStore) {
    let connection = connect(store, "a").await;
    connect(store, "b").await;
    assert!(mark_disconnected(store, &connection).await);
    assert_eq!(find_for_org_1(store, "a").await, None);
    assert!(find_for_org_1(store, "b").await.is_some());
    let disconnect = load_client_state(store, "a").await.disconnect.unwrap();
    assert_eq!(disconnect.tenant, Some(tenant("1")));
    assert!(!mark_disconnected(store, &connection).await);
    let mut unknown = connection;
    unknown.client_id = crate::fixtures::client("unknown");
    assert!(!mark_disconnected(store, &unknown).await);
}

pub async fn mark_disconnected_has_the_time_of_the_database(store: &TestStore) {
    let before = domain::Timestamp::now();
    let connection = connect(store, "a").await;
    assert!(mark_disconnected(store, &connection).await);
    let disconnect = load_client_state(store, "a").await.disconnect.unwrap();
    let difference = disconnect.received_at.time.duration_since(before);
    // The test and the database run on the same host.
    assert!(
        (-1..60).contains(&difference.as_secs()),
        "the time differs by {difference:?}"
    );
}

/// The receive times are earlier than the time of the database, as if the disconnect were written
/// long after the client reconnected.
pub async fn mark_disconnected_does_not_end_a_newer_connection(store: &TestStore) {
    for (message_id, second) in [(Some("m2"), 1), (Some("m2"), 0), (Some("m1"), 2), (None, 3)] {
        let connection = connect(store, "a").await;
        reconnect(store, "a", message_id, second).await;
        let before = load_client_state(store, "a").await;
        assert!(!mark_disconnected(store, &connection).await);
        assert_eq!(load_client_state(store, "a").await, before);
        let newer = read_connection(store, "a").await;
        assert!(mark_disconnected(store, &newer).await, "{message_id:?}");
    }
}

pub async fn mark_disconnected_does_not_end_a_connection_that_a_heartbeat_restored(
    store: &TestStore,
) {
    let connection = connect(store, "a").await;
    record_offline(store, &["a"], 2).await;
    record_heartbeat(store, "a", 3, None).await;
    assert!(!mark_disconnected(store, &connection).await);
    let restored = read_connection(store, "a").await;
    assert!(mark_disconnected(store, &restored).await);
}

pub async fn heartbeats_lookups_and_inventory_reports_do_not_prevent_the_disconnect(
    store: &TestStore,
) {
    for second in [6, FUTURE] {
        let connection = connect(store, "a").await;
        record_heartbeat(store, "a", second, None).await;
        assert!(mark_disconnected(store, &connection).await, "{second}");
    }
    // An offline message that a heartbeat overruled does not end the connection.
    let connection = connect(store, "a").await;
    record_heartbeat(store, "a", FUTURE + 9, None).await;
    record_offline(store, &["a"], FUTURE + 8).await;
    assert!(mark_disconnected(store, &connection).await);
    let connection = connect(store, "a").await;
    report_to_inventory(store).await;
    assert!(mark_disconnected(store, &connection).await);
}

pub async fn client_that_reconnects_after_the_disconnect_is_connected(store: &TestStore) {
    let connection = connect(store, "a").await;
    record_heartbeat(store, "a", FUTURE, None).await;
    mark_disconnected(store, &connection).await;
    // A heartbeat that was received before the disconnect does not restore the client.
    record_heartbeat(store, "a", FUTURE, None).await;
    assert_eq!(find_for_org_1(store, "a").await, None);
    record_heartbeat(store, "a", FUTURE + 1, None).await;
    assert!(find_for_org_1(store, "a").await.is_some());
    let restored = read_connection(store, "a").await;
    mark_disconnected(store, &restored).await;
    // The order of presence messages decides, not their receive times.
    reconnect(store, "a", Some("m2"), 1).await;
    assert!(find_for_org_1(store, "a").await.is_some());
}

pub async fn mark_disconnected_moves_the_disconnect_time_of_a_disconnected_client(
    store: &TestStore,
) {
    let connection = connect(store, "a").await;
    record_offline(store, &["a"], 2).await;
    assert!(!mark_disconnected(store, &connection).await);
    record_heartbeat(store, "a", 4, None).await;
    assert_eq!(find_for_org_1(store, "a").await, None);
}
