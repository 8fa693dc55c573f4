//! A batch is written completely or not at all.

use domain::OnlineCause;
use store::{
    ConnectionUpsert, HistoryRow, NewEvent, PartitionLease, PresenceBatch, QueueTopic, ReplacedRow,
    StoreError, Transition, WriteOutcome, event_data,
};
use test_support::stores::TestStore;

use crate::fixtures::{
    client, connection_end, dead_letter, find_for_org_1, load_client_state, record_offline,
    record_online, tenant, timestamp_at, upsert_for_org,
};
use crate::sample_batch::{self, KindOfRow};

/// Client name and dead-letter topic that the database rejects after [`TestStore::reject_rows`].
const REJECTED_TEXT: &str = "rejected-by-the-test";

/// Returns a batch with one upsert, which the database rejects.
fn batch_with_rejected_upsert() -> PresenceBatch {
    let mut rejected = upsert_for_org("rejected", "1");
    rejected.info.client_name = REJECTED_TEXT.into();
    PresenceBatch {
        upserts: vec![rejected],
        ..PresenceBatch::default()
    }
}

pub async fn batch_with_an_outdated_lease_is_fenced(store: &TestStore) {
    let write = async |name: &str, leases: &[PartitionLease]| {
        let batch = PresenceBatch {
            upserts: vec![upsert_for_org(name, "1")],
            ..PresenceBatch::default()
        };
        store
            .presence
            .record_batch(&batch, leases, timestamp_at(1))
            .await
            .unwrap()
    };
    let first_leases = store
        .presence
        .acquire_partitions(QueueTopic::Ingress, &[0, 1], "one")
        .await
        .unwrap();
    assert_eq!(first_leases.len(), 2);
    assert_eq!(write("a", &first_leases).await, WriteOutcome::Committed);
    // The lease of a partition does not affect the partition with the same number in another topic.
    let answers_leases = store
        .presence
        .acquire_partitions(QueueTopic::Answers, &[1], "two")
        .await
        .unwrap();
    let both_topics = [first_leases[0], first_leases[1], answers_leases[0]];
    assert_eq!(write("a", &both_topics).await, WriteOutcome::Committed);
    let second_leases = store
        .presence
        .acquire_partitions(QueueTopic::Ingress, &[1], "two")
        .await
        .unwrap();
    assert_ne!(first_leases[1], second_leases[0]);
    assert_eq!(
        write("b", &first_leases).await,
        WriteOutcome::Fenced(vec![first_leases[1]])
    );
    assert_eq!(find_for_org_1(store, "b").await, None);
    // The first owner still owns partition 0, and the second owner owns partition 1.
    assert_eq!(
        write("c", &first_leases[..1]).await,
        WriteOutcome::Committed
    );
    assert_eq!(write("d", &second_leases).await, WriteOutcome::Committed);
    let never_acquired = [PartitionLease {
        queue: QueueTopic::Ingress,
        partition: 7,
        epoch: 1,
    }];
    assert_eq!(
        write("e", &never_acquired).await,
        WriteOutcome::Fenced(never_acquired.to_vec())
    );
}

pub async fn every_kind_of_row_of_a_batch_is_stored(store: &TestStore) {
    sample_batch::insert_required_rows(store).await;
    assert_eq!(sample_batch::stored_kinds(store).await, []);
    let batch = sample_batch::sample_batch();
    let outcome = store
        .presence
        .record_batch(&batch, &[], timestamp_at(9))
        .await
        .unwrap();
    assert_eq!(outcome, WriteOutcome::Committed);
    assert_eq!(sample_batch::stored_kinds(store).await, KindOfRow::ALL);
}

pub async fn fenced_batch_stores_no_kind_of_row(store: &TestStore) {
    sample_batch::insert_required_rows(store).await;
    let acquire = async |owner| {
        let leases = store
            .presence
            .acquire_partitions(QueueTopic::Ingress, &[0], owner);
        leases.await.unwrap()
    };
    let old_leases = acquire("one").await;
    acquire("two").await;
    let outcome = store
        .presence
        .record_batch(&sample_batch::sample_batch(), &old_leases, timestamp_at(9))
        .await
        .unwrap();
    assert_eq!(outcome, WriteOutcome::Fenced(old_leases));
    assert_eq!(sample_batch::stored_kinds(store).await, []);
}

/// The first batch fails at its first list, and the second batch fails at its last list.
pub async fn failed_batch_stores_no_kind_of_row(store: &TestStore) {
    sample_batch::insert_required_rows(store).await;
    store
        .reject_rows("connections", "client_name", REJECTED_TEXT)
        .await;
    store
        .reject_rows("dead_letters", "topic", REJECTED_TEXT)
        .await;
    let mut fails_first = sample_batch::sample_batch();
    fails_first
        .upserts
        .extend(batch_with_rejected_upsert().upserts);
    let mut fails_last = sample_batch::sample_batch();
    let mut rejected_dead_letter = dead_letter("rejected", b"x", 1);
    rejected_dead_letter.topic = REJECTED_TEXT.into();
    fails_last.dead_letters.push(rejected_dead_letter);
    for batch in [fails_first, fails_last] {
        let result = store
            .presence
            .record_batch(&batch, &[], timestamp_at(9))
            .await;
        assert!(
            matches!(result, Err(StoreError::RowRejected(_))),
            "{result:?}"
        );
        assert_eq!(sample_batch::stored_kinds(store).await, []);
    }
}

/// Another writer has changed or deleted the row of a client since its state was loaded.
pub async fn batch_with_an_outdated_row_writes_nothing(store: &TestStore) {
    let names = ["changed", "deleted", "ended"];
    let upserts = names.map(|name| upsert_for_org(name, "1"));
    record_online(store, upserts.to_vec()).await;
    let version = async |name| {
        let state = load_client_state(store, name).await;
        ReplacedRow::Version(state.connection.unwrap().version)
    };
    let (changed, deleted) = (version("changed").await, version("deleted").await);
    let batch = PresenceBatch {
        upserts: vec![upsert_for_org("changed", "1")],
        ..PresenceBatch::default()
    };
    let write = store.presence.record_batch(&batch, &[], timestamp_at(2));
    assert_eq!(write.await.unwrap(), WriteOutcome::Committed);
    record_offline(store, &["deleted"], 3).await;
    store.events.sequence_events(100).await.unwrap();
    let before = stored_content(store).await;
    for (name, replaced) in [
        ("changed", ReplacedRow::Absent),
        ("changed", changed),
        ("deleted", deleted),
    ] {
        let single_statement = batch_of_new_client_and(name, replaced);
        let mut transaction = single_statement.clone();
        transaction.connection_ends = vec![connection_end("ended", 5)];
        transaction.dead_letters = vec![dead_letter("ended", b"x", 5)];
        for batch in [single_statement, transaction] {
            let outcome = store.presence.record_batch(&batch, &[], timestamp_at(9));
            assert_eq!(
                outcome.await.unwrap(),
                WriteOutcome::Conflict,
                "{name} {replaced:?}"
            );
            assert_eq!(stored_content(store).await, before, "{name} {replaced:?}");
        }
    }
}

/// Returns a batch with the upserts of a new client and of another client, and with their history and
/// events.
fn batch_of_new_client_and(name: &str, replaced: ReplacedRow) -> PresenceBatch {
    let mut upserts = vec![upsert_for_org("a-new", "1"), upsert_for_org(name, "1")];
    upserts[0].replaced = ReplacedRow::Absent;
    upserts[1].replaced = replaced;
    "outdated".clone_into(&mut upserts[1].info.client_version);
    let history = |upsert: &ConnectionUpsert| HistoryRow {
        client_id: upsert.client_id.clone(),
        number: 50,
        at: timestamp_at(9),
        tenant: Some(tenant("1")),
        transition: Transition::Online(OnlineCause::Connected),
    };
    let event = |upsert: &ConnectionUpsert| NewEvent {
        client_id: upsert.client_id.clone(),
        tenant: tenant("1"),
        at: timestamp_at(9),
        event_type: event_data::ONLINE,
        data: event_data::online(&upsert.info, OnlineCause::Connected),
        dispatchers_changed: false,
    };
    PresenceBatch {
        history: upserts.iter().map(history).collect(),
        events: upserts.iter().map(event).collect(),
        upserts,
        ..PresenceBatch::default()
    }
}

/// Returns what is stored about all clients: their states, their connections, their history, and the
/// numbers of dead letters and of events.
async fn stored_content(store: &TestStore) -> impl PartialEq + std::fmt::Debug {
    let clients = ["a-new", "changed", "deleted", "ended"].map(client);
    let states = store.presence.load_client_states(&clients).await.unwrap();
    let mut details = Vec::new();
    for client in &clients {
        let connection = find_for_org_1(store, client.as_str()).await;
        let history = store.clients.list_history(None, client, None, 100);
        details.push((connection, history.await.unwrap()));
    }
    let filter = store::DeadLetterFilter::default();
    let dead_letters = store.dead_letters.list_dead_letters(&filter, 100).await;
    store.events.sequence_events(100).await.unwrap();
    let event_count = store.events.newest_position().await.unwrap();
    (states, details, dead_letters.unwrap().len(), event_count)
}

#[derive(Default)]
struct ObservedParts {
    rejected_upserts: Vec<Vec<store::ConnectionUpsert>>,
    /// Number of upserts of each committed part.
    committed_upserts: Vec<usize>,
    committed_dead_letters: usize,
}

impl store::PartsObserver for ObservedParts {
    fn on_committed(&mut self, part: &PresenceBatch) {
        self.committed_upserts.push(part.upserts.len());
        self.committed_dead_letters += part.dead_letters.len();
    }

    fn on_rejected(&mut self, part: store::RejectedPart) {
        self.rejected_upserts.push(part.rows.upserts);
    }
}

/// Rows that violate the same constraint have the same reason, even if their values differ.
pub async fn reason_of_a_rejected_row_contains_no_values(store: &TestStore) {
    store
        .reject_rows("connections", "client_name", REJECTED_TEXT)
        .await;
    let mut reasons = Vec::new();
    for client_id in ["first-1", "second-2"] {
        let mut batch = batch_with_rejected_upsert();
        batch.upserts[0].client_id = client(client_id);
        let result = store
            .presence
            .record_batch(&batch, &[], timestamp_at(9))
            .await;
        let Err(StoreError::RowRejected(rejection)) = result else {
            panic!("{result:?}");
        };
        reasons.push(rejection.reason);
    }
    assert_eq!(reasons[0], reasons[1]);
    assert!(!reasons[0].is_empty());
}

pub async fn every_kind_of_row_survives_the_bisection_of_a_rejected_batch(store: &TestStore) {
    sample_batch::insert_required_rows(store).await;
    store
        .reject_rows("connections", "client_name", REJECTED_TEXT)
        .await;
    let rejected = batch_with_rejected_upsert();
    let mut batch = sample_batch::sample_batch();
    batch.upserts.extend(rejected.upserts.clone());
    // The client of the rejected row also has two dead letters. They must be stored.
    for payload in [b"1", b"2"] {
        batch.dead_letters.push(dead_letter("rejected", payload, 1));
    }
    let expected_dead_letters = batch.dead_letters.len();
    let mut parts = ObservedParts::default();
    let outcome =
        store::record_batch_in_parts(&*store.presence, batch, &[], timestamp_at(9), &mut parts)
            .await
            .unwrap();
    assert_eq!(outcome, WriteOutcome::Committed);
    assert_eq!(parts.rejected_upserts, [rejected.upserts]);
    assert_eq!(parts.committed_dead_letters, expected_dead_letters);
    assert_eq!(sample_batch::stored_kinds(store).await, KindOfRow::ALL);
    let filter = store::DeadLetterFilter::default();
    let dead_letters = store.dead_letters.list_dead_letters(&filter, 100).await;
    assert_eq!(dead_letters.unwrap().len(), expected_dead_letters);
}

/// The database rejects every delivered report. The other rows are still written in one transaction.
pub async fn rejected_delivered_reports_do_not_split_the_other_rows(store: &TestStore) {
    let rows = |prefix: &str| {
        let names = (0..20).map(|n| format!("{prefix}-{n}"));
        names
            .map(|name| upsert_for_org(&name, "1"))
            .collect::<Vec<_>>()
    };
    record_online(store, rows("old")).await;
    store.reject_delivered_reports().await;
    let batch = PresenceBatch {
        upserts: rows("new"),
        delivered_reports: (0..20)
            .map(|n| sample_batch::delivered_report(&format!("old-{n}"), 5))
            .collect(),
        ..PresenceBatch::default()
    };
    let mut parts = ObservedParts::default();
    let outcome =
        store::record_batch_in_parts(&*store.presence, batch, &[], timestamp_at(9), &mut parts);
    assert_eq!(outcome.await.unwrap(), WriteOutcome::Committed);
    assert_eq!(parts.committed_upserts, [20]);
    assert_eq!(parts.rejected_upserts, [vec![]], "only the reports");
    assert!(find_for_org_1(store, "new-7").await.is_some());
}

pub async fn rejected_row_and_unavailable_database_are_different_errors(store: &TestStore) {
    store
        .reject_rows("connections", "client_name", REJECTED_TEXT)
        .await;
    let record = async || {
        let batch = batch_with_rejected_upsert();
        store
            .presence
            .record_batch(&batch, &[], timestamp_at(1))
            .await
    };
    let result = record().await;
    assert!(
        matches!(result, Err(StoreError::RowRejected(_))),
        "{result:?}"
    );
    store.maintenance.close().await;
    let result = record().await;
    assert!(
        matches!(result, Err(StoreError::Unavailable(_))),
        "{result:?}"
    );
}

pub async fn operations_succeed_again_after_their_transactions_failed(store: &TestStore) {
    let leases = store
        .presence
        .acquire_partitions(QueueTopic::Ingress, &[0], "one")
        .await
        .unwrap();
    let batch = PresenceBatch {
        upserts: vec![upsert_for_org("a", "1")],
        dead_letters: vec![dead_letter("a", b"x", 5)],
        ..PresenceBatch::default()
    };
    // Each operation fails in the middle of its transaction, more often than a pool has connections.
    for table in ["dead_letters", "partition_epoch", "connections"] {
        let renamed = format!("{table}_renamed");
        store
            .execute(format!("ALTER TABLE {table} RENAME TO {renamed}"))
            .await;
        for _ in 0..12 {
            let result = store
                .presence
                .record_batch(&batch, &leases, timestamp_at(1))
                .await;
            assert!(
                matches!(result, Err(StoreError::Unavailable(_))),
                "{result:?}"
            );
            if table == "connections" {
                store.connections.list_all_clients(0, 1).await.unwrap_err();
            }
        }
        store
            .execute(format!("ALTER TABLE {renamed} RENAME TO {table}"))
            .await;
        assert_eq!(find_for_org_1(store, "a").await, None, "{table}");
    }
    let outcome = store
        .presence
        .record_batch(&batch, &leases, timestamp_at(1))
        .await;
    assert_eq!(outcome.unwrap(), WriteOutcome::Committed);
    assert!(find_for_org_1(store, "a").await.is_some());
    let page = store.connections.list_all_clients(0, 1).await.unwrap();
    assert_eq!(page.total_count, 1);
}
