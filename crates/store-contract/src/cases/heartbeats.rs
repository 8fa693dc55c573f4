//! Heartbeats, and their order relative to offline messages.

use domain::IngestStamp;
use store::{ConnectionEnd, HeartbeatUpdate, PresenceBatch, ReceivedAt, TenantChange};
use test_support::stores::TestStore;

use crate::fixtures::{
    client, find_for_org_1, load_client_state, received_at, record_heartbeat, record_offline,
    record_online, tenant, timestamp_at, upsert, upsert_for_org,
};

/// Returns the receive time and the stamp of a message of the session 1.
fn stamped_at(second: i64, epoch: i64, sequence: i64) -> ReceivedAt {
    ReceivedAt {
        stamp: Some(IngestStamp {
            session: 1,
            epoch,
            sequence,
        }),
        ..received_at(second)
    }
}

/// Records an online message, a heartbeat or an offline message of the client `a`.
enum Message {
    Online(ReceivedAt),
    Heartbeat(ReceivedAt),
    Offline(ReceivedAt),
}

async fn record(store: &TestStore, message: Message) {
    let client_id = client("a");
    let mut batch = PresenceBatch::default();
    match message {
        Message::Online(received_at) => {
            let mut upsert = upsert_for_org("a", "1");
            upsert.received_at = received_at;
            batch.upserts.push(upsert);
        }
        Message::Heartbeat(received_at) => batch.heartbeats.push(HeartbeatUpdate {
            client_id,
            received_at,
            tenant: None,
        }),
        Message::Offline(received_at) => batch.connection_ends.push(ConnectionEnd {
            client_id,
            received_at,
            reason: domain::OfflineReason::Client,
        }),
    }
    let now = timestamp_at(100);
    let outcome = store.presence.record_batch(&batch, &[], now).await;
    outcome.unwrap();
}

/// In this case and in the next cases, the receive times are in the opposite order.
pub async fn stamps_decide_between_a_heartbeat_and_a_later_offline_message(store: &TestStore) {
    record(store, Message::Online(stamped_at(50, 1, 1))).await;
    record(store, Message::Heartbeat(stamped_at(51, 1, 2))).await;
    record(store, Message::Offline(stamped_at(10, 2, 1))).await;
    assert_eq!(find_for_org_1(store, "a").await, None);
    let disconnect = load_client_state(store, "a").await.disconnect.unwrap();
    assert_eq!(disconnect.received_at, stamped_at(10, 2, 1));
    // A redelivered heartbeat does not restore the connection.
    record(store, Message::Heartbeat(stamped_at(51, 1, 2))).await;
    assert_eq!(find_for_org_1(store, "a").await, None);
    // The next offline message replaces the stamp of the first one.
    record(store, Message::Offline(stamped_at(5, 3, 1))).await;
    record(store, Message::Heartbeat(stamped_at(60, 2, 9))).await;
    assert_eq!(find_for_org_1(store, "a").await, None);
}

pub async fn stamps_decide_between_an_offline_message_and_a_later_heartbeat(store: &TestStore) {
    record(store, Message::Online(stamped_at(40, 1, 1))).await;
    record(store, Message::Offline(stamped_at(50, 1, 2))).await;
    record(store, Message::Heartbeat(stamped_at(10, 2, 1))).await;
    assert!(find_for_org_1(store, "a").await.is_some());
    let stored = load_client_state(store, "a").await.connection.unwrap();
    assert!(stored.offline_message_overruled);
    assert_eq!(stored.received_at, stamped_at(50, 1, 2));
    assert_eq!(stored.last_heartbeat_at, Some(stamped_at(10, 2, 1)));
    // An earlier heartbeat does not replace a later heartbeat.
    record(store, Message::Heartbeat(stamped_at(60, 1, 9))).await;
    let stored = load_client_state(store, "a").await.connection.unwrap();
    assert_eq!(stored.last_heartbeat_at, Some(stamped_at(10, 2, 1)));
    // An offline message that was received before the heartbeat is stored, but has no effect.
    record(store, Message::Offline(stamped_at(70, 1, 10))).await;
    let stored = load_client_state(store, "a").await.connection.unwrap();
    assert_eq!(stored.received_at, stamped_at(70, 1, 10));
    record(store, Message::Offline(stamped_at(1, 2, 2))).await;
    assert_eq!(find_for_org_1(store, "a").await, None);
}

pub async fn online_message_keeps_only_a_heartbeat_with_a_higher_stamp(store: &TestStore) {
    record(store, Message::Online(stamped_at(1, 1, 1))).await;
    record(store, Message::Heartbeat(stamped_at(90, 1, 2))).await;
    record(store, Message::Online(stamped_at(10, 2, 1))).await;
    let stored = load_client_state(store, "a").await.connection.unwrap();
    assert_eq!(stored.received_at, stamped_at(10, 2, 1));
    assert_eq!(stored.last_heartbeat_at, None);
    record(store, Message::Heartbeat(stamped_at(5, 2, 3))).await;
    record(store, Message::Online(stamped_at(50, 2, 2))).await;
    let stored = load_client_state(store, "a").await.connection.unwrap();
    assert_eq!(stored.last_heartbeat_at, Some(stamped_at(5, 2, 3)));
}

pub async fn message_without_a_stamp_clears_the_stored_stamp(store: &TestStore) {
    record(store, Message::Online(stamped_at(1, 1, 1))).await;
    record(store, Message::Heartbeat(stamped_at(2, 1, 2))).await;
    record(store, Message::Heartbeat(received_at(3))).await;
    let stored = load_client_state(store, "a").await.connection.unwrap();
    assert_eq!(stored.last_heartbeat_at, Some(received_at(3)));
    record(store, Message::Online(received_at(4))).await;
    let stored = load_client_state(store, "a").await.connection.unwrap();
    assert_eq!(stored.received_at, received_at(4));
    assert_eq!(stored.last_heartbeat_at, None);
    // Without a stamp, the receive times decide.
    record(store, Message::Heartbeat(stamped_at(3, 9, 9))).await;
    let stored = load_client_state(store, "a").await.connection.unwrap();
    assert_eq!(stored.last_heartbeat_at, None);
    record(store, Message::Offline(stamped_at(5, 1, 1))).await;
    record(store, Message::Offline(received_at(6))).await;
    let disconnect = load_client_state(store, "a").await.disconnect.unwrap();
    assert_eq!(disconnect.received_at, received_at(6));
}

/// A process that does not know the columns of the stamp clears only the time of a heartbeat.
pub async fn stamp_without_a_heartbeat_time_is_ignored(store: &TestStore) {
    record(store, Message::Online(stamped_at(1, 1, 1))).await;
    record(store, Message::Heartbeat(stamped_at(9, 5, 5))).await;
    store
        .execute("UPDATE connections SET last_heartbeat_at = NULL")
        .await;
    record(store, Message::Heartbeat(stamped_at(2, 1, 2))).await;
    let stored = load_client_state(store, "a").await.connection.unwrap();
    assert_eq!(stored.last_heartbeat_at, Some(stamped_at(2, 1, 2)));
    store
        .execute("UPDATE connections SET last_heartbeat_at = NULL")
        .await;
    record(store, Message::Offline(stamped_at(3, 1, 1))).await;
    assert_eq!(find_for_org_1(store, "a").await, None);
}

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
    assert_eq!(stored.last_heartbeat_at, Some(received_at(3)));
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
    assert_eq!(stored.last_heartbeat_at, Some(received_at(5)));
    record_offline(store, &["a"], 5).await;
    assert_eq!(find_for_org_1(store, "a").await, None);
    // An upsert can contain a heartbeat that is later than its online message.
    let mut with_heartbeat = upsert_for_org("a", "1");
    with_heartbeat.last_heartbeat_at = Some(received_at(9));
    record_online(store, vec![with_heartbeat]).await;
    record_offline(store, &["a"], 2).await;
    assert!(find_for_org_1(store, "a").await.is_some());
}
