//! Delivered reports to inventory are stored only for the content that was reported.

use store::{DeliveredReport, LookupOutcome, LookupReason, LookupResult, PresenceBatch};
use test_support::stores::TestStore;

use crate::fixtures::{
    client, received_at, record_heartbeat, record_offline, record_online, tenant, timestamp_at,
    upsert_for_org,
};
use crate::sample_batch::delivered_report;

async fn record_reports(store: &TestStore, delivered_reports: Vec<DeliveredReport>) {
    let batch = PresenceBatch {
        delivered_reports,
        ..PresenceBatch::default()
    };
    let outcome = store.presence.record_batch(&batch, &[], timestamp_at(100));
    outcome.await.unwrap();
}

/// Returns the time of the latest report, in seconds after [`timestamp_at`] 0. Returns `None` if the
/// report is pending.
async fn reported_at(store: &TestStore, client_id: &str) -> Option<i64> {
    let row = store.row(client_id).await.expect("a connection");
    let seconds = row.stale_timestamp - timestamp_at(0).as_second();
    (row.stale_timestamp > 0).then_some(seconds)
}

pub async fn delivered_report_sets_the_time_of_the_report(store: &TestStore) {
    let rows = ["a", "b", "c"].map(|name| upsert_for_org(name, "1"));
    record_online(store, rows.to_vec()).await;
    let reports = [("c", 7), ("a", 5), ("unknown", 5)];
    let reports = reports.map(|(name, second)| delivered_report(name, second));
    record_reports(store, reports.to_vec()).await;
    assert_eq!(reported_at(store, "a").await, Some(5));
    assert_eq!(reported_at(store, "b").await, None);
    assert_eq!(reported_at(store, "c").await, Some(7));
}

pub async fn delivered_report_of_a_changed_row_is_ignored(store: &TestStore) {
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    // A newer online message in the same batch as the report of the older one.
    let mut newer = upsert_for_org("a", "1");
    newer.received_at = received_at(3);
    let batch = PresenceBatch {
        upserts: vec![newer],
        delivered_reports: vec![delivered_report("a", 5)],
        ..PresenceBatch::default()
    };
    let outcome = store.presence.record_batch(&batch, &[], timestamp_at(4));
    outcome.await.unwrap();
    assert_eq!(reported_at(store, "a").await, None);
    record_reports(store, vec![delivered_report("a", 5)]).await;
    assert_eq!(reported_at(store, "a").await, None);
    // The clock was set back, so two batches have the same time.
    let mut report = delivered_report("a", 5);
    report.row_version = timestamp_at(4);
    record_reports(store, vec![report.clone()]).await;
    assert_eq!(reported_at(store, "a").await, None);
    report.online_received_at = timestamp_at(3);
    record_reports(store, vec![report]).await;
    assert_eq!(reported_at(store, "a").await, Some(5));
}

pub async fn delivered_report_after_a_disconnect_is_ignored(store: &TestStore) {
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    record_offline(store, &["a"], 2).await;
    record_reports(store, vec![delivered_report("a", 5)]).await;
    assert!(store.row("a").await.is_none());
    record_heartbeat(store, "a", 3, None).await;
    let before = reported_at(store, "a").await;
    record_reports(store, vec![delivered_report("a", 5)]).await;
    assert_eq!(reported_at(store, "a").await, before);
}

/// A lookup job that has claimed the row must be able to save its result.
pub async fn delivered_report_does_not_change_the_version_of_the_row(store: &TestStore) {
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    let reason = LookupReason::InventoryRefresh {
        reported_before: timestamp_at(50),
    };
    let claimed = store
        .lookup_queue
        .claim_for_lookup(reason, 10, timestamp_at(50), timestamp_at(60))
        .await
        .unwrap();
    assert_eq!(claimed.len(), 1);
    record_reports(store, vec![delivered_report("a", 5)]).await;
    let result = LookupResult {
        client_id: client("a"),
        row_version: claimed[0].row_version,
        outcome: LookupOutcome::Found {
            tenant: tenant("2"),
            reported_to_inventory_at: Some(timestamp_at(9)),
            inventory_eligible: true,
            report_failed: false,
        },
    };
    let saved = store
        .lookup_queue
        .save_lookup_results(&[result], timestamp_at(10))
        .await;
    assert_eq!(saved.unwrap(), 1);
    assert_eq!(reported_at(store, "a").await, Some(9));
    // The job has changed the tenant, so an older report does not count.
    record_reports(store, vec![delivered_report("a", 11)]).await;
    assert_eq!(reported_at(store, "a").await, Some(9));
}
