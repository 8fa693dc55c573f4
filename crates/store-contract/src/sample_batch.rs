//! A batch that contains every kind of row.
//!
//! The functions name every field of [`PresenceBatch`]. After a list was added to
//! [`PresenceBatch`], they compile only when they contain the new kind of row. The cases in
//! `cases::batches` then prove that both backends and the bisection handle it.

use store::{
    DeadLetterFilter, DeadLetterLimits, DeliveredReport, HeartbeatUpdate, LastSeen, PresenceBatch,
};
use test_support::stores::TestStore;

use crate::fixtures::{
    answer, client, connection_end, dead_letter, find_for_org_1, insert_message, load_client_state,
    org, received_at, record_online, timestamp_at, upsert_for_org,
};

/// A list of [`PresenceBatch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KindOfRow {
    Upsert,
    Heartbeat,
    ConnectionEnd,
    DeadLetter,
    DeliveredReport,
    LastSeen,
    Answer,
}

impl KindOfRow {
    pub(crate) const ALL: [Self; 7] = [
        Self::Upsert,
        Self::Heartbeat,
        Self::ConnectionEnd,
        Self::DeadLetter,
        Self::DeliveredReport,
        Self::LastSeen,
        Self::Answer,
    ];
}

/// Returns a batch with one row of each kind. Each row belongs to another client.
pub(crate) fn sample_batch() -> PresenceBatch {
    PresenceBatch {
        upserts: vec![upsert_for_org("upserted", "1")],
        heartbeats: vec![HeartbeatUpdate {
            client_id: client("heartbeat"),
            received_at: received_at(5),
            tenant: None,
        }],
        connection_ends: vec![connection_end("ended", 5)],
        dead_letters: vec![dead_letter("dead-letter", b"x", 5)],
        dead_letter_limits: DeadLetterLimits {
            max_dead_letters_per_client: 10,
        },
        delivered_reports: vec![delivered_report("reported", 5)],
        last_seen: vec![LastSeen {
            client_id: client("seen"),
            at: timestamp_at(5),
        }],
        history: Vec::new(),
        events: Vec::new(),
        answers: vec![answer("answering", SAMPLE_MESSAGE, "1", 5)],
    }
}

/// Id of the message that the client `answering` answers.
const SAMPLE_MESSAGE: &str = "018f3c1e-7a2b-7c3d-8e4f-0123456789ab";

/// Returns a delivered report of a connection that [`record_online`] has inserted.
pub(crate) fn delivered_report(client_id: &str, reported_at: i64) -> DeliveredReport {
    DeliveredReport {
        client_id: client(client_id),
        row_version: timestamp_at(1),
        online_received_at: timestamp_at(0),
        reported_at: timestamp_at(reported_at),
    }
}

/// Inserts the connections that the heartbeat, the end of the connection, the delivered report and the time
/// of the latest message change.
pub(crate) async fn insert_required_rows(store: &TestStore) {
    let required = ["heartbeat", "ended", "reported", "seen"].map(|name| upsert_for_org(name, "1"));
    record_online(store, required.to_vec()).await;
    insert_message(store, SAMPLE_MESSAGE, "1", "answering", 0).await;
}

/// Returns the kinds of rows of the sample batch that the database contains.
pub(crate) async fn stored_kinds(store: &TestStore) -> Vec<KindOfRow> {
    let PresenceBatch {
        upserts,
        heartbeats,
        connection_ends,
        dead_letters,
        dead_letter_limits: _,
        delivered_reports,
        last_seen,
        history: _,
        events: _,
        answers,
    } = sample_batch();
    let upserted = find_for_org_1(store, upserts[0].client_id.as_str()).await;
    let heartbeat = &heartbeats[0];
    let heartbeat_state = load_client_state(store, heartbeat.client_id.as_str()).await;
    let stored_heartbeat = heartbeat_state
        .connection
        .and_then(|row| row.last_heartbeat_at);
    let end_state = load_client_state(store, connection_ends[0].client_id.as_str()).await;
    let filter = DeadLetterFilter {
        client: dead_letters[0].client.clone(),
        ..DeadLetterFilter::default()
    };
    let stored_dead_letters = store.dead_letters.list_dead_letters(&filter, 10).await;
    let delivered_report = &delivered_reports[0];
    let reported_row = store.row(delivered_report.client_id.as_str()).await;
    let reported_at = reported_row.map(|row| row.stale_timestamp);
    let seen_state = load_client_state(store, last_seen[0].client_id.as_str()).await;
    let stored_last_seen = seen_state.connection.and_then(|row| row.presence.last_seen);
    let org = org("1");
    let message = store.messages.find_message(&org, &answers[0].message_id);
    let answer_count = message.await.unwrap().map(|message| message.answer_count);
    let is_stored = |kind: &KindOfRow| match kind {
        KindOfRow::Answer => answer_count == Some(1),
        KindOfRow::Upsert => upserted.is_some(),
        KindOfRow::Heartbeat => stored_heartbeat == Some(heartbeat.received_at),
        KindOfRow::ConnectionEnd => end_state.disconnect.is_some(),
        KindOfRow::DeadLetter => !stored_dead_letters.as_ref().unwrap().is_empty(),
        KindOfRow::LastSeen => stored_last_seen == Some(last_seen[0].at),
        KindOfRow::DeliveredReport => reported_at == Some(delivered_report.reported_at.as_second()),
    };
    KindOfRow::ALL.into_iter().filter(is_stored).collect()
}
