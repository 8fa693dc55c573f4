//! Reading and deleting events.

use domain::OfflineReason;
use serde_json::{Value, json};
use store::{HeartbeatUpdate, NewEvent, PresenceBatch, StoredEvent, event_data};
use test_support::stores::TestStore;

use crate::fixtures::{
    client, connection_end, org, received_at, record_online, tenant, timestamp_at, upsert_for_org,
};

/// Inserts one event for each second, each for another client, and gives positions to them.
async fn insert_events(store: &TestStore, org_id: &str, seconds: &[i64]) {
    for second in seconds {
        let client_id = format!("client-{second}");
        let data = format!("{{\"second\": {second}}}");
        store
            .insert_event(org_id, &client_id, &data, timestamp_at(*second))
            .await;
    }
    store.events.sequence_events(1000).await.unwrap();
}

async fn read_positions(store: &TestStore, after_position: u64) -> Vec<u64> {
    let events = store.events.read_events(None, after_position, 100).await;
    events.unwrap().iter().map(|event| event.position).collect()
}

pub async fn events_are_read_by_organization_in_the_order_of_their_positions(store: &TestStore) {
    assert_eq!(store.events.newest_position().await.unwrap(), 0);
    assert_eq!(store.events.oldest_position().await.unwrap(), None);
    insert_events(store, "a", &[1, 2]).await;
    insert_events(store, "b", &[3]).await;
    insert_events(store, "a", &[4]).await;
    assert_eq!(store.events.newest_position().await.unwrap(), 4);
    assert_eq!(store.events.oldest_position().await.unwrap(), Some(1));
    assert_eq!(read_positions(store, 0).await, [1, 2, 3, 4]);
    assert_eq!(read_positions(store, 3).await, [4]);
    assert_eq!(read_positions(store, 4).await, [0; 0]);
    let first_of_a = store.events.read_events(Some(&org("a")), 1, 1).await;
    assert_eq!(
        first_of_a.unwrap(),
        [StoredEvent {
            position: 2,
            at: timestamp_at(2),
            event_type: "connection.online".into(),
            tenant: tenant("a"),
            client_id: client("client-2"),
            data: json!({"second": 2}),
            previous_dispatchers: Some(json!({"old": {}})),
        }]
    );
    let of_a = store.events.read_events(Some(&org("a")), 0, 10).await;
    let positions: Vec<u64> = of_a.unwrap().iter().map(|event| event.position).collect();
    assert_eq!(positions, [1, 2, 4]);
}

pub async fn large_events_are_read_in_several_calls(store: &TestStore) {
    let large = format!("{{\"text\": \"{}\"}}", "x".repeat(3_000_000));
    for second in 1..=3 {
        store
            .insert_event("a", "client", &large, timestamp_at(second))
            .await;
    }
    store.events.sequence_events(10).await.unwrap();
    assert_eq!(read_positions(store, 0).await, [1, 2]);
    assert_eq!(read_positions(store, 2).await, [3]);
}

pub async fn events_are_deleted_from_the_oldest_position_up_to_a_time_and_a_position(
    store: &TestStore,
) {
    // The event at position 4 is older than the event at position 3.
    insert_events(store, "a", &[1, 2, 20, 3, 30]).await;
    let delete = async |second, limit, up_to_position| {
        let events = &store.events;
        let (time, now) = (timestamp_at(second), timestamp_at(1000));
        let deleted = events.delete_events_before(time, now, limit, up_to_position);
        deleted.await.unwrap()
    };
    assert_eq!(delete(1, 100, 5).await, 0);
    assert_eq!(delete(10, 1, 5).await, 1);
    assert_eq!(read_positions(store, 0).await, [2, 3, 4, 5]);
    assert_eq!(delete(10, 100, 1).await, 0);
    // Position 4 stays, because it follows an event that is not deleted.
    assert_eq!(delete(10, 100, u64::MAX).await, 1);
    assert_eq!(read_positions(store, 0).await, [3, 4, 5]);
    assert_eq!(delete(25, 100, u64::MAX).await, 2);
    assert_eq!(read_positions(store, 0).await, [5]);
}

/// The host booted with a wrong clock, which was corrected later.
pub async fn events_with_a_future_time_do_not_stop_the_deletion(store: &TestStore) {
    insert_events(store, "a", &[5000, 1, 5001, 2, 20, 5002]).await;
    let delete = async |second, now, limit| {
        let (time, now) = (timestamp_at(second), timestamp_at(now));
        let deleted = store
            .events
            .delete_events_before(time, now, limit, u64::MAX);
        deleted.await.unwrap()
    };
    assert_eq!(delete(1, 30, 100).await, 0);
    assert_eq!(delete(2, 30, 100).await, 2);
    assert_eq!(read_positions(store, 0).await, [3, 4, 5, 6]);
    assert_eq!(delete(10, 30, 1).await, 1);
    assert_eq!(delete(10, 30, 100).await, 1);
    assert_eq!(read_positions(store, 0).await, [5, 6]);
    assert_eq!(delete(30, 40, 100).await, 1);
    assert_eq!(delete(5003, 6000, 100).await, 1);
    assert_eq!(read_positions(store, 0).await, [0; 0]);
}

pub async fn history_and_events_are_never_later_than_their_batch(store: &TestStore) {
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    let batch = PresenceBatch {
        connection_ends: vec![connection_end("a", 5000)],
        ..PresenceBatch::default()
    };
    let write = store.presence.record_batch(&batch, &[], timestamp_at(2));
    write.await.unwrap();
    let batch = PresenceBatch {
        heartbeats: vec![HeartbeatUpdate {
            client_id: client("a"),
            received_at: received_at(5001),
            tenant: None,
        }],
        ..PresenceBatch::default()
    };
    let write = store.presence.record_batch(&batch, &[], timestamp_at(3));
    write.await.unwrap();
    store.events.sequence_events(10).await.unwrap();
    let events = store.events.read_events(None, 0, 10).await.unwrap();
    let times: Vec<_> = events.iter().map(|event| event.at).collect();
    assert_eq!(times, [2, 3].map(timestamp_at));
    let client = client("a");
    let history = store.clients.list_history(None, &client, None, 10);
    let times: Vec<_> = history.await.unwrap().iter().map(|row| row.at).collect();
    assert_eq!(times, [3, 2].map(timestamp_at));
}

pub async fn newest_position_remains_after_all_events_are_deleted(store: &TestStore) {
    insert_events(store, "a", &[1, 2]).await;
    let deleted =
        store
            .events
            .delete_events_before(timestamp_at(10), timestamp_at(1000), 100, u64::MAX);
    assert_eq!(deleted.await.unwrap(), 2);
    assert_eq!(store.events.newest_position().await.unwrap(), 2);
    assert_eq!(store.events.oldest_position().await.unwrap(), None);
    insert_events(store, "a", &[3]).await;
    assert_eq!(read_positions(store, 0).await, [3]);
}

pub async fn offline_event_of_a_client_that_moves_has_its_last_dispatchers(store: &TestStore) {
    let mut upsert = upsert_for_org("a", "1");
    upsert.info.dispatchers = json!({"old": {"version": "1"}});
    record_online(store, vec![upsert]).await;
    let mut upsert = upsert_for_org("a", "2");
    upsert.info.dispatchers = json!({"new": {}});
    let event = |org_id, event_type, data| NewEvent {
        client_id: client("a"),
        tenant: tenant(org_id),
        at: timestamp_at(2),
        event_type,
        data,
        dispatchers_changed: true,
    };
    let offline = event_data::offline(OfflineReason::Moved, 5, &Value::Null);
    let updated = event_data::updated(&upsert.info, &["dispatchers"]);
    let batch = PresenceBatch {
        events: vec![
            event("1", event_data::OFFLINE, offline),
            event("2", event_data::UPDATED, updated),
        ],
        upserts: vec![upsert],
        ..PresenceBatch::default()
    };
    let write = store.presence.record_batch(&batch, &[], timestamp_at(2));
    write.await.unwrap();
    store.events.sequence_events(10).await.unwrap();
    let events = store.events.read_events(None, 0, 10).await.unwrap();
    let [offline, updated] = &events[..] else {
        panic!("{events:?}");
    };
    let last_dispatchers = json!({"old": {"version": "1"}});
    let expected = json!({"reason": "moved", "connected_for": 5, "dispatchers": last_dispatchers});
    assert_eq!(offline.data, expected);
    assert_eq!(offline.previous_dispatchers, None);
    assert_eq!(updated.data["dispatchers"], json!({"new": {}}));
    assert_eq!(updated.previous_dispatchers, Some(last_dispatchers));
}
