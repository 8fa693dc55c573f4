//! Epochs of `ingest` and of partitions.

use domain::Timestamp;
use store::{IngestEpoch, QueueTopic};
use test_support::stores::TestStore;

async fn next_epoch(store: &TestStore, session_name: &str) -> IngestEpoch {
    let epoch = store
        .ingest_epochs
        .next_ingest_epoch(session_name, true)
        .await;
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

pub async fn one_process_has_the_lease_of_a_session(store: &TestStore) {
    let hold = async |holder: &str, seconds| {
        let duration = std::time::Duration::from_secs(seconds);
        let request = store
            .ingest_epochs
            .hold_ingest_session("a", holder, duration);
        request.await.unwrap()
    };
    assert!(hold("one", 60).await);
    assert!(!hold("two", 60).await);
    // The holder renews its lease, and an epoch does not change the lease.
    let epoch = next_epoch(store, "a").await;
    assert!(hold("one", 60).await);
    assert!(!hold("two", 60).await);
    assert!(next_epoch(store, "a").await.epoch > epoch.epoch);
    // Another process cannot end the lease.
    let release = async |holder| {
        store
            .ingest_epochs
            .release_ingest_session("a", holder)
            .await
    };
    release("two").await.unwrap();
    assert!(!hold("two", 60).await);
    release("one").await.unwrap();
    assert!(hold("two", 60).await);
    // An expired lease can be acquired.
    let expired = "UPDATE ingest_sessions SET held_until = NULL";
    store.execute(expired).await;
    assert!(hold("one", 60).await);
    assert!(!hold("two", 60).await);
}
