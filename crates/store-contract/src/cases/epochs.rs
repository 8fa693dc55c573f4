//! Epochs of `ingest` and of partitions.

use domain::Timestamp;
use store::{IngestEpoch, QueueTopic};
use test_support::stores::TestStore;

async fn next_epoch(store: &TestStore, session_name: &str) -> IngestEpoch {
    let epoch = store.ingest_epochs.next_ingest_epoch(session_name).await;
    epoch.unwrap()
}

async fn next_partition_epoch(store: &TestStore) -> i64 {
    let leases = store
        .presence
        .acquire_partitions(QueueTopic::Ingress, &[0], "owner")
        .await;
    leases.unwrap()[0].epoch
}

pub async fn each_connection_of_a_session_gets_a_higher_epoch(store: &TestStore) {
    let first = next_epoch(store, "a").await;
    let second = next_epoch(store, "a").await;
    let other = next_epoch(store, "b").await;
    assert!(second.epoch > first.epoch, "{first:?} {second:?}");
    assert_eq!(second.session, first.session);
    assert_ne!(other.session, first.session);
}

pub async fn epochs_of_a_restored_database_are_higher_than_before(store: &TestStore) {
    let started_at = Timestamp::now().as_second();
    assert!(next_epoch(store, "a").await.epoch >= started_at);
    assert!(next_partition_epoch(store).await >= started_at);
    // The backup contains lower epochs than the epochs that were issued after it.
    store.execute("UPDATE ingest_sessions SET epoch = 1").await;
    store.execute("UPDATE partition_epoch SET epoch = 1").await;
    assert!(next_epoch(store, "a").await.epoch >= started_at);
    assert!(next_partition_epoch(store).await >= started_at);
    // The clock of the database was set back.
    let future = started_at + 1_000_000;
    store
        .execute(format!("UPDATE ingest_sessions SET epoch = {future}"))
        .await;
    store
        .execute(format!("UPDATE partition_epoch SET epoch = {future}"))
        .await;
    assert_eq!(next_epoch(store, "a").await.epoch, future + 1);
    assert_eq!(next_partition_epoch(store).await, future + 1);
}
