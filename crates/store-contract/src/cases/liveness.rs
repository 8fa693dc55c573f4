//! The liveness sweep: silent connections, expired connections, and the progress of recording.

use domain::{ClientId, OfflineReason, Timestamp};
use store::{
    ClientStatus, ExpiringConnection, QueueTopic, RecordingProgress, SweepState, WatchedConnection,
};
use test_support::stores::TestStore;

use crate::fixtures::{
    client, find_for_org_1, load_client_state, org, record_heartbeat, record_online, timestamp_at,
    upsert_for_org,
};

/// Connects clients. Each was last seen at its second.
async fn connect(store: &TestStore, clients: &[(&str, i64)]) {
    let upserts = clients
        .iter()
        .map(|(client_id, _)| upsert_for_org(client_id, "1"));
    record_online(store, upserts.collect()).await;
    for (client_id, second) in clients {
        record_heartbeat(store, client_id, *second, None).await;
    }
}

async fn watched(store: &TestStore, client_id: &str) -> Option<WatchedConnection> {
    let clients = [client(client_id)];
    let found = store.liveness.find_watched_connections(&clients).await;
    found.unwrap().pop()
}

async fn expire(
    store: &TestStore,
    connections: &[WatchedConnection],
    second: i64,
) -> Vec<ClientId> {
    let expiring: Vec<_> = connections
        .iter()
        .map(|connection| ExpiringConnection {
            connection: connection.clone(),
            unanswered_since: timestamp_at(second),
        })
        .collect();
    let mut expired = store.liveness.expire_connections(&expiring).await.unwrap();
    expired.sort_unstable();
    expired
}

pub async fn connections_are_listed_by_the_time_of_their_last_message(store: &TestStore) {
    connect(
        store,
        &[("a", 10), ("b", 20), ("c", 30), ("d", 40), ("e", 20)],
    )
    .await;
    let list = async |after: Option<&str>, limit, from, until| {
        let after = after.map(client);
        let (from, until) = (timestamp_at(from), timestamp_at(until));
        let chunk = store
            .liveness
            .list_connections_seen_between(after.as_ref(), limit, from, until)
            .await
            .unwrap();
        let names = chunk
            .connections
            .iter()
            .map(|it| it.client_id.as_str().to_owned());
        let last = chunk.last_client.map(|id| id.as_str().to_owned());
        (names.collect::<String>(), chunk.read_connections, last)
    };
    let last = |name: &str| Some(name.to_owned());
    assert_eq!(
        list(None, 10, 0, 30).await,
        ("abe".to_owned(), 5, last("e"))
    );
    assert_eq!(
        list(None, 10, 20, 31).await,
        ("bce".to_owned(), 5, last("e"))
    );
    // A chunk without a silent connection still names its last client.
    assert_eq!(list(None, 2, 0, 15).await, ("a".to_owned(), 2, last("b")));
    assert_eq!(
        list(Some("b"), 2, 0, 15).await,
        (String::new(), 2, last("d"))
    );
    assert_eq!(
        list(Some("d"), 2, 0, 30).await,
        ("e".to_owned(), 1, last("e"))
    );
    assert_eq!(list(Some("e"), 2, 0, 30).await, (String::new(), 0, None));
}

pub async fn row_without_last_seen_has_the_time_of_its_latest_message(store: &TestStore) {
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    store
        .execute("UPDATE connections SET last_seen = NULL")
        .await;
    let connection = watched(store, "a").await.unwrap();
    assert_eq!(connection.last_seen, timestamp_at(0));
    assert_eq!(connection.dialect, protocol::status::NAME);
    assert_eq!(connection.topic_prefix, "redhat/insights");
}

pub async fn expired_connection_is_disconnected_with_history_and_event(store: &TestStore) {
    connect(store, &[("a", 10), ("b", 20)]).await;
    let silent = watched(store, "a").await.unwrap();
    assert_eq!(expire(store, &[silent], 60).await, [client("a")]);
    assert!(find_for_org_1(store, "b").await.is_some());
    let record = store
        .clients
        .find_client_for_org(&org("1"), &client("a"))
        .await;
    let status = record.unwrap().unwrap().status;
    let expected = ClientStatus::Disconnected {
        at: timestamp_at(60),
        reason: Some(OfflineReason::Expired),
    };
    assert_eq!(status, expected);
    let history = store
        .clients
        .list_history(None, &client("a"), None, 1)
        .await
        .unwrap();
    assert_eq!(
        (history[0].status.as_str(), history[0].reason.as_str()),
        ("offline", "expired")
    );
    assert_eq!(history[0].at, timestamp_at(60));
    store.events.sequence_events(100).await.unwrap();
    let events = store
        .events
        .read_events(Some(&org("1")), 0, 100)
        .await
        .unwrap();
    let event = events.last().unwrap();
    assert_eq!(event.event_type, "connection.offline");
    assert_eq!(event.data["reason"], "expired");
}

pub async fn connection_with_a_message_after_the_first_ping_does_not_expire(store: &TestStore) {
    connect(store, &[("heartbeat", 10), ("online", 10), ("silent", 10)]).await;
    let mut connections = Vec::new();
    for client_id in ["heartbeat", "online", "silent"] {
        connections.push(watched(store, client_id).await.unwrap());
    }
    record_heartbeat(store, "heartbeat", 20, None).await;
    let mut online = upsert_for_org("online", "1");
    online.received_at = crate::fixtures::received_at(30);
    let batch = store::PresenceBatch {
        upserts: vec![online],
        ..store::PresenceBatch::default()
    };
    let recorded = store
        .presence
        .record_batch(&batch, &[], timestamp_at(31))
        .await;
    recorded.unwrap();
    assert_eq!(expire(store, &connections, 60).await, [client("silent")]);
    assert!(watched(store, "heartbeat").await.is_some());
    assert!(watched(store, "online").await.is_some());
    // The client is no longer connected.
    assert_eq!(expire(store, &connections[2..], 60).await, []);
}

pub async fn later_heartbeat_restores_an_expired_connection(store: &TestStore) {
    connect(store, &[("a", 10)]).await;
    let silent = watched(store, "a").await.unwrap();
    expire(store, &[silent], 60).await;
    record_heartbeat(store, "a", 59, None).await;
    assert_eq!(find_for_org_1(store, "a").await, None);
    record_heartbeat(store, "a", 61, None).await;
    assert!(find_for_org_1(store, "a").await.is_some());
    assert_eq!(load_client_state(store, "a").await.disconnect, None);
}

pub async fn disconnect_of_an_expired_connection_is_not_before_its_latest_message(
    store: &TestStore,
) {
    connect(store, &[("a", 100)]).await;
    let silent = watched(store, "a").await.unwrap();
    // The clock of the host that received the message was ahead.
    assert_eq!(expire(store, &[silent], 60).await, [client("a")]);
    let disconnect = load_client_state(store, "a").await.disconnect.unwrap();
    assert_eq!(disconnect.received_at.time, timestamp_at(100));
}

pub async fn progress_of_recording_never_decreases(store: &TestStore) {
    let progress = |queue, partition, partition_count, second| RecordingProgress {
        queue,
        partition,
        partition_count,
        processed_until: timestamp_at(second),
    };
    let store_progress = async |rows: &[RecordingProgress]| {
        store.liveness.store_recording_progress(rows).await.unwrap()
    };
    assert_eq!(store.liveness.recording_progress().await.unwrap(), []);
    let (ingress, slow) = (QueueTopic::Ingress, QueueTopic::Slow);
    let first = store_progress(&[progress(ingress, 0, 2, 10), progress(slow, 0, 1, 5)]).await;
    assert!(first > timestamp_at(0));
    store_progress(&[progress(ingress, 1, 2, 20), progress(ingress, 0, 2, 9)]).await;
    let expected = [
        progress(ingress, 0, 2, 10),
        progress(ingress, 1, 2, 20),
        progress(slow, 0, 1, 5),
    ];
    assert_eq!(store.liveness.recording_progress().await.unwrap(), expected);
    // The topic was created again with one partition.
    store_progress(&[progress(ingress, 0, 1, 30)]).await;
    let expected = [progress(ingress, 0, 1, 30), progress(slow, 0, 1, 5)];
    assert_eq!(store.liveness.recording_progress().await.unwrap(), expected);
}

pub async fn ingest_sessions_have_their_epoch_lease_and_start(store: &TestStore) {
    let hold = std::time::Duration::from_mins(1);
    let sessions = &store.ingest_epochs;
    // The lease of the sweep is no session.
    assert!(
        sessions
            .hold_ingest_session("sweep", "me", hold)
            .await
            .unwrap()
    );
    let started_before = Timestamp::now();
    let epoch = sessions.next_ingest_epoch("a", true).await.unwrap();
    let read = async || store.liveness.ingest_sessions().await.unwrap();
    let found = read().await;
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].session, found[0].epoch),
        (epoch.session, epoch.epoch)
    );
    assert_eq!((found[0].is_held, found[0].started_at), (false, None));
    assert!(sessions.hold_ingest_session("a", "me", hold).await.unwrap());
    sessions.next_ingest_epoch("a", false).await.unwrap();
    let found = read().await;
    assert!(found[0].is_held && found[0].epoch > epoch.epoch);
    let started_at = found[0].started_at.unwrap();
    let minute = std::time::Duration::from_mins(1);
    assert!(started_at > domain::clock::saturating_sub(started_before, minute));
    // A later connection that finds its session does not change the time.
    sessions.next_ingest_epoch("a", true).await.unwrap();
    assert_eq!(read().await[0].started_at, Some(started_at));
    sessions.release_ingest_session("a", "me").await.unwrap();
    assert!(!read().await[0].is_held);
}

pub async fn state_of_the_sweep_is_stored(store: &TestStore) {
    assert_eq!(
        store.liveness.sweep_state().await.unwrap(),
        SweepState::default()
    );
    let state = SweepState {
        completed_at: Some(timestamp_at(1)),
        swept_restart_at: Some(timestamp_at(2)),
    };
    store.liveness.store_sweep_state(state).await.unwrap();
    assert_eq!(store.liveness.sweep_state().await.unwrap(), state);
    assert!(store.liveness.current_time().await.unwrap() > timestamp_at(0));
}
