//! Items S and T: how the updaters change a row. S is the inventory refresh, T the lookup of
//! tenantless clients.

use std::sync::Arc;
use std::time::Duration;

use cloud_connector::domain::{ClientInfo, ClientKind, Dialect, MessageId, Timestamp};
use cloud_connector::jobs::{
    LookupJob, LookupJobConfig, RunOptions, RunSummary, StopReason, TenantLookupJob,
};
use cloud_connector::store::{ConnectionUpsert, PresenceBatch, ReceivedAt, Store, TenantChange};
use cloud_connector::tenant::TenantLookupOutcome;
use serde_json::json;

use super::{FakeTenantLookup, UpdaterFixture, at, client_id, each_store, tenant};
use crate::support::deployment::ConnectionRow;

each_store!(
    s1_inventory_refresh_skips_tenantless_rows,
    s2_not_found_clears_org_id_and_account,
    s3_not_found_keeps_the_stale_timestamp,
    s4_not_found_increments_the_failure_count,
    s5_not_found_sets_the_lookup_timestamp_to_now,
    s6_found_sends_an_inventory_message,
    s7_found_resets_the_failure_count,
    s8_found_sets_the_lookup_timestamp_to_null,
    s9_only_a_delivered_inventory_message_updates_the_stale_timestamp,
    s10_unavailable_leaves_the_row_unchanged,
    t1_skips_rows_with_the_maximum_failure_count,
    t2_skips_rows_with_a_tenant,
    t3_not_found_keeps_the_stale_timestamp,
    t4_not_found_increments_the_failure_count,
    t5_not_found_sets_the_lookup_timestamp_to_now,
    t6_found_sets_org_id_and_account,
    t7_found_resets_the_failure_count,
    t8_found_sets_the_lookup_timestamp_to_null,
    t9_looks_up_the_oldest_rows_first,
    t10_waits_for_the_retry_interval,
    t11_unavailable_does_not_count_as_an_attempt,
    t12_found_reports_the_host_to_inventory,
    t13_unavailable_database_fails_the_run,
    a_lookup_result_does_not_overwrite_a_newer_row,
    concurrent_runs_look_up_each_row_once,
    mass_loss_is_applied_only_with_force,
    unavailable_lookups_stop_the_run_after_one_chunk,
    unavailable_clients_are_looked_up_once_per_run,
);

const REFRESH_AFTER_SECONDS: i64 = 25 * 3600;
const RETRY_INTERVAL_SECONDS: i64 = 1800;

/// The row of a host that connected at the start time.
fn host_upsert(
    name: &str,
    tenant: TenantChange,
    reported_to_inventory_at: Option<Timestamp>,
) -> ConnectionUpsert {
    ConnectionUpsert {
        client_id: client_id(name),
        dialect: Dialect::Status,
        kind: ClientKind::Host,
        topic_prefix: "p".into(),
        info: ClientInfo {
            canonical_facts: json!({"insights_id": "cabb61b6-e61d-4d70-b475-01f5c009e93c"}),
            catalog_service_facts: json!(null),
            dispatchers: json!({"rhc-worker-playbook": {}}),
            tags: json!(null),
            client_name: String::new(),
            client_version: String::new(),
        },
        message_id: MessageId::new("m").ok(),
        message_sent: at(0),
        received: ReceivedAt {
            time: at(0),
            position: None,
        },
        last_heartbeat_at: None,
        tenant,
        inventory_eligible: true,
        reported_to_inventory_at,
    }
}

impl UpdaterFixture {
    fn store(&self) -> Arc<dyn Store> {
        self.test_store.store.clone()
    }

    fn lookup_job(&self) -> TenantLookupJob {
        TenantLookupJob {
            store: self.store(),
            tenant_lookup: self.tenant_lookup.clone(),
            inventory: Some(self.inventory_reporter()),
            clock: self.clock.clone(),
            config: LookupJobConfig {
                max_concurrency: 8,
                lookup_timeout: Duration::from_secs(5),
                refresh_after: Duration::from_secs(REFRESH_AFTER_SECONDS.unsigned_abs()),
                retry_interval: Duration::from_secs(RETRY_INTERVAL_SECONDS.unsigned_abs()),
                max_attempts: 3,
            },
        }
    }

    async fn run(&self, job: LookupJob) -> RunSummary {
        self.lookup_job()
            .run(job, RunOptions::default(), &|_| {})
            .await
            .unwrap()
    }

    async fn insert(&self, upserts: Vec<ConnectionUpsert>) {
        let batch = PresenceBatch {
            upserts,
            ..PresenceBatch::default()
        };
        self.store().record_batch(&batch, &[], at(0)).await.unwrap();
    }

    /// Inserts a host that is due for an inventory refresh, and sets the outcome of its lookup.
    /// Returns its row.
    async fn insert_due_for_refresh(
        &self,
        name: &str,
        outcome: TenantLookupOutcome,
    ) -> ConnectionRow {
        let found = TenantChange::Found(tenant("1"));
        let host = host_upsert(name, found, Some(at(0)));
        self.insert(vec![host]).await;
        self.tenant_lookup.set_outcome(name, outcome);
        self.advance_clock(REFRESH_AFTER_SECONDS + 1);
        self.row(name).await
    }

    /// Inserts a tenantless client that is due for a lookup, and sets the outcome of its lookup.
    /// Returns its row.
    async fn insert_tenantless(&self, name: &str, outcome: TenantLookupOutcome) -> ConnectionRow {
        let not_found = TenantChange::NotFound(at(0));
        self.insert(vec![host_upsert(name, not_found, None)]).await;
        self.tenant_lookup.set_outcome(name, outcome);
        self.advance_clock(RETRY_INTERVAL_SECONDS + 1);
        self.row(name).await
    }

    async fn row(&self, name: &str) -> ConnectionRow {
        self.test_store.row(name).await.unwrap()
    }

    fn requested_clients(&self) -> Vec<String> {
        self.tenant_lookup.requested_clients.lock().clone()
    }

    fn now(&self) -> i64 {
        self.clock.0.lock().as_second()
    }
}

async fn s1_inventory_refresh_skips_tenantless_rows(fixture: UpdaterFixture) {
    fixture
        .insert_tenantless("a", FakeTenantLookup::found("1"))
        .await;
    fixture.advance_clock(REFRESH_AFTER_SECONDS);
    assert_eq!(
        fixture.run(LookupJob::InventoryRefresh).await,
        RunSummary::default()
    );
    assert!(fixture.requested_clients().is_empty());
}

async fn s2_not_found_clears_org_id_and_account(fixture: UpdaterFixture) {
    fixture
        .insert_due_for_refresh("a", TenantLookupOutcome::NotFound)
        .await;
    fixture.run(LookupJob::InventoryRefresh).await;
    let row = fixture.row("a").await;
    assert_eq!((row.org_id.as_str(), row.account.as_str()), ("", ""));
}

async fn s3_not_found_keeps_the_stale_timestamp(fixture: UpdaterFixture) {
    let before = fixture
        .insert_due_for_refresh("a", TenantLookupOutcome::NotFound)
        .await;
    fixture.run(LookupJob::InventoryRefresh).await;
    assert_eq!(
        fixture.row("a").await.stale_timestamp,
        before.stale_timestamp
    );
    assert!(
        fixture.inventory.messages.lock().is_empty(),
        "a message was sent to inventory"
    );
}

async fn s4_not_found_increments_the_failure_count(fixture: UpdaterFixture) {
    fixture
        .insert_due_for_refresh("a", TenantLookupOutcome::NotFound)
        .await;
    fixture.run(LookupJob::InventoryRefresh).await;
    assert_eq!(fixture.row("a").await.tenant_lookup_failure_count, 1);
}

async fn s5_not_found_sets_the_lookup_timestamp_to_now(fixture: UpdaterFixture) {
    fixture
        .insert_due_for_refresh("a", TenantLookupOutcome::NotFound)
        .await;
    fixture.run(LookupJob::InventoryRefresh).await;
    assert_eq!(
        fixture.row("a").await.tenant_lookup_timestamp,
        Some(fixture.now())
    );
}

async fn s6_found_sends_an_inventory_message(fixture: UpdaterFixture) {
    fixture
        .insert_due_for_refresh("a", FakeTenantLookup::found("1"))
        .await;
    let summary = fixture.run(LookupJob::InventoryRefresh).await;
    assert_eq!((summary.found, summary.reported_to_inventory), (1, 1));
    assert_eq!(fixture.inventory.messages.lock()[0]["data"]["org_id"], "1");
}

async fn s7_found_resets_the_failure_count(fixture: UpdaterFixture) {
    fixture
        .insert_due_for_refresh("a", FakeTenantLookup::found("1"))
        .await;
    let sql = "UPDATE connections SET tenant_lookup_failure_count = 2";
    fixture.test_store.execute(sql).await;
    fixture.run(LookupJob::InventoryRefresh).await;
    assert_eq!(fixture.row("a").await.tenant_lookup_failure_count, 0);
}

async fn s8_found_sets_the_lookup_timestamp_to_null(fixture: UpdaterFixture) {
    fixture
        .insert_due_for_refresh("a", FakeTenantLookup::found("1"))
        .await;
    fixture.run(LookupJob::InventoryRefresh).await;
    assert_eq!(fixture.row("a").await.tenant_lookup_timestamp, None);
}

async fn s9_only_a_delivered_inventory_message_updates_the_stale_timestamp(
    fixture: UpdaterFixture,
) {
    let before = fixture
        .insert_due_for_refresh("a", FakeTenantLookup::found("1"))
        .await;
    *fixture.inventory.is_unavailable.lock() = true;
    let summary = fixture.run(LookupJob::InventoryRefresh).await;
    assert_eq!(
        (summary.reported_to_inventory, summary.pending_inventory),
        (0, 1)
    );
    assert_eq!(
        fixture.row("a").await.stale_timestamp,
        before.stale_timestamp
    );
    // The next run retries the report.
    *fixture.inventory.is_unavailable.lock() = false;
    fixture.advance_clock(3600);
    assert_eq!(
        fixture
            .run(LookupJob::InventoryRefresh)
            .await
            .reported_to_inventory,
        1
    );
    assert_eq!(fixture.row("a").await.stale_timestamp, fixture.now());
    assert_eq!(
        fixture.run(LookupJob::InventoryRefresh).await,
        RunSummary::default()
    );
}

async fn s10_unavailable_leaves_the_row_unchanged(fixture: UpdaterFixture) {
    let before = fixture
        .insert_due_for_refresh("a", TenantLookupOutcome::Unavailable)
        .await;
    let summary = fixture.run(LookupJob::InventoryRefresh).await;
    assert!(summary.is_failure(), "{summary}");
    assert_eq!(fixture.row("a").await, before);
}

async fn t1_skips_rows_with_the_maximum_failure_count(fixture: UpdaterFixture) {
    fixture
        .insert_tenantless("a", TenantLookupOutcome::NotFound)
        .await;
    for n in 1..=3 {
        assert_eq!(fixture.run(LookupJob::Tenantless).await.not_found, 1);
        assert_eq!(fixture.row("a").await.tenant_lookup_failure_count, n);
        fixture.advance_clock(RETRY_INTERVAL_SECONDS + 1);
    }
    assert_eq!(
        fixture.run(LookupJob::Tenantless).await,
        RunSummary::default()
    );
    let counts = fixture.store().count_tenantless(3).await.unwrap();
    assert_eq!((counts.pending, counts.exhausted), (0, 1));
}

async fn t2_skips_rows_with_a_tenant(fixture: UpdaterFixture) {
    fixture
        .insert_due_for_refresh("a", FakeTenantLookup::found("1"))
        .await;
    assert_eq!(
        fixture.run(LookupJob::Tenantless).await,
        RunSummary::default()
    );
}

async fn t3_not_found_keeps_the_stale_timestamp(fixture: UpdaterFixture) {
    let before = fixture
        .insert_tenantless("a", TenantLookupOutcome::NotFound)
        .await;
    fixture.run(LookupJob::Tenantless).await;
    assert_eq!(
        fixture.row("a").await.stale_timestamp,
        before.stale_timestamp
    );
}

async fn t4_not_found_increments_the_failure_count(fixture: UpdaterFixture) {
    fixture
        .insert_tenantless("a", TenantLookupOutcome::NotFound)
        .await;
    fixture.run(LookupJob::Tenantless).await;
    assert_eq!(fixture.row("a").await.tenant_lookup_failure_count, 1);
}

async fn t5_not_found_sets_the_lookup_timestamp_to_now(fixture: UpdaterFixture) {
    fixture
        .insert_tenantless("a", TenantLookupOutcome::NotFound)
        .await;
    fixture.run(LookupJob::Tenantless).await;
    assert_eq!(
        fixture.row("a").await.tenant_lookup_timestamp,
        Some(fixture.now())
    );
}

async fn t6_found_sets_org_id_and_account(fixture: UpdaterFixture) {
    fixture
        .insert_tenantless("a", FakeTenantLookup::found("7"))
        .await;
    fixture.run(LookupJob::Tenantless).await;
    let row = fixture.row("a").await;
    assert_eq!((row.org_id.as_str(), row.account.as_str()), ("7", "42"));
}

async fn t7_found_resets_the_failure_count(fixture: UpdaterFixture) {
    fixture
        .insert_tenantless("a", FakeTenantLookup::found("7"))
        .await;
    let sql = "UPDATE connections SET tenant_lookup_failure_count = 2";
    fixture.test_store.execute(sql).await;
    fixture.run(LookupJob::Tenantless).await;
    assert_eq!(fixture.row("a").await.tenant_lookup_failure_count, 0);
}

async fn t8_found_sets_the_lookup_timestamp_to_null(fixture: UpdaterFixture) {
    fixture
        .insert_tenantless("a", FakeTenantLookup::found("7"))
        .await;
    fixture.run(LookupJob::Tenantless).await;
    assert_eq!(fixture.row("a").await.tenant_lookup_timestamp, None);
}

async fn t9_looks_up_the_oldest_rows_first(fixture: UpdaterFixture) {
    for (name, second) in [("young", 30), ("old", 10), ("middle", 20)] {
        let not_found = TenantChange::NotFound(at(second));
        fixture
            .insert(vec![host_upsert(name, not_found, None)])
            .await;
        fixture
            .tenant_lookup
            .set_outcome(name, TenantLookupOutcome::NotFound);
    }
    fixture.advance_clock(RETRY_INTERVAL_SECONDS + 60);
    for name in ["old", "middle", "young"] {
        let one_row = RunOptions {
            limit: Some(1),
            force: false,
        };
        let job = fixture.lookup_job();
        job.run(LookupJob::Tenantless, one_row, &|_| {})
            .await
            .unwrap();
        assert_eq!(fixture.requested_clients().last().unwrap(), name);
    }
}

async fn t10_waits_for_the_retry_interval(fixture: UpdaterFixture) {
    fixture
        .insert_tenantless("a", TenantLookupOutcome::NotFound)
        .await;
    fixture.run(LookupJob::Tenantless).await;
    fixture.advance_clock(RETRY_INTERVAL_SECONDS);
    assert_eq!(
        fixture.run(LookupJob::Tenantless).await,
        RunSummary::default()
    );
    fixture.advance_clock(1);
    assert_eq!(fixture.run(LookupJob::Tenantless).await.not_found, 1);
}

async fn t11_unavailable_does_not_count_as_an_attempt(fixture: UpdaterFixture) {
    let before = fixture
        .insert_tenantless("a", TenantLookupOutcome::Unavailable)
        .await;
    for _ in 0..5 {
        let summary = fixture.run(LookupJob::Tenantless).await;
        assert_eq!(summary.unavailable, 1, "{summary}");
        assert_eq!(fixture.row("a").await, before);
        fixture.advance_clock(1);
    }
    // The row is still due: the job does not wait for the retry interval.
    fixture
        .tenant_lookup
        .set_outcome("a", FakeTenantLookup::found("1"));
    assert_eq!(fixture.run(LookupJob::Tenantless).await.found, 1);
}

async fn t12_found_reports_the_host_to_inventory(fixture: UpdaterFixture) {
    fixture
        .insert_tenantless("a", FakeTenantLookup::found("7"))
        .await;
    assert_eq!(
        fixture
            .run(LookupJob::Tenantless)
            .await
            .reported_to_inventory,
        1
    );
    assert_eq!(fixture.inventory.messages.lock()[0]["data"]["org_id"], "7");
    assert_eq!(fixture.row("a").await.stale_timestamp, fixture.now());
}

async fn t13_unavailable_database_fails_the_run(fixture: UpdaterFixture) {
    fixture
        .insert_tenantless("a", FakeTenantLookup::found("7"))
        .await;
    fixture.store().close().await;
    let job = fixture.lookup_job();
    let run = job.run(LookupJob::Tenantless, RunOptions::default(), &|_| {});
    assert!(run.await.is_err());
}

async fn a_lookup_result_does_not_overwrite_a_newer_row(fixture: UpdaterFixture) {
    fixture
        .insert_tenantless("a", TenantLookupOutcome::NotFound)
        .await;
    let due = fixture.lookup_job().due_criteria(LookupJob::Tenantless);
    let now = *fixture.clock.0.lock();
    let claimed = fixture
        .store()
        .claim_for_lookup(due, 10, now, now + Duration::from_mins(1))
        .await
        .unwrap();
    // Meanwhile the recorder processes an online message and finds a tenant.
    let found = TenantChange::Found(tenant("9"));
    let batch = PresenceBatch {
        upserts: vec![host_upsert("a", found, None)],
        ..PresenceBatch::default()
    };
    fixture
        .store()
        .record_batch(&batch, &[], now)
        .await
        .unwrap();
    let result = cloud_connector::store::LookupResult {
        client_id: claimed[0].client_id.clone(),
        row_version: claimed[0].row_version,
        outcome: cloud_connector::store::LookupOutcome::NotFound,
    };
    assert_eq!(
        fixture
            .store()
            .save_lookup_results(&[result], now)
            .await
            .unwrap(),
        0
    );
    assert_eq!(fixture.row("a").await.org_id, "9");
}

async fn concurrent_runs_look_up_each_row_once(fixture: UpdaterFixture) {
    let names: Vec<String> = (0..200).map(|n| format!("c{n:03}")).collect();
    let tenantless = |name: &String| host_upsert(name, TenantChange::NotFound(at(0)), None);
    fixture.insert(names.iter().map(tenantless).collect()).await;
    for name in &names {
        fixture
            .tenant_lookup
            .set_outcome(name, FakeTenantLookup::found("1"));
    }
    fixture.advance_clock(RETRY_INTERVAL_SECONDS + 1);
    let (first, second) = tokio::join!(
        fixture.run(LookupJob::Tenantless),
        fixture.run(LookupJob::Tenantless)
    );
    assert_eq!(first.found + second.found, 200);
    let mut requested_clients = fixture.requested_clients();
    requested_clients.sort();
    assert_eq!(requested_clients, names);
}

async fn mass_loss_is_applied_only_with_force(fixture: UpdaterFixture) {
    let names: Vec<String> = (0..60).map(|n| format!("c{n:03}")).collect();
    let with_tenant =
        |name: &String| host_upsert(name, TenantChange::Found(tenant("1")), Some(at(0)));
    fixture
        .insert(names.iter().map(with_tenant).collect())
        .await;
    for name in &names {
        fixture
            .tenant_lookup
            .set_outcome(name, TenantLookupOutcome::NotFound);
    }
    fixture.advance_clock(REFRESH_AFTER_SECONDS + 1);
    let summary = fixture.run(LookupJob::InventoryRefresh).await;
    assert_eq!(summary.stop_reason, StopReason::MassLoss);
    assert!(summary.is_failure());
    for name in &names {
        assert_eq!(
            fixture.row(name).await.org_id,
            "1",
            "the client lost its tenant"
        );
    }
    fixture.advance_clock(1);
    let forced = RunOptions {
        limit: None,
        force: true,
    };
    let job = fixture.lookup_job();
    let summary = job
        .run(LookupJob::InventoryRefresh, forced, &|_| {})
        .await
        .unwrap();
    assert_eq!(summary.not_found, 60);
}

async fn unavailable_lookups_stop_the_run_after_one_chunk(fixture: UpdaterFixture) {
    let tenantless = |n: i32| {
        let name = format!("c{n:04}");
        host_upsert(&name, TenantChange::NotFound(at(0)), None)
    };
    for from in [0, 1000, 2000] {
        fixture
            .insert((from..from + 1000).map(tenantless).collect())
            .await;
    }
    fixture.advance_clock(RETRY_INTERVAL_SECONDS + 1);
    let summary = fixture.run(LookupJob::Tenantless).await;
    assert_eq!(summary.stop_reason, StopReason::LookupUnavailable);
    assert_eq!(summary.unavailable, 2000, "expected lookups of one chunk");
    // All rows are still due, including those that were not looked up.
    fixture.advance_clock(1);
    let due = fixture.lookup_job().due_criteria(LookupJob::Tenantless);
    let now = *fixture.clock.0.lock();
    assert_eq!(fixture.store().count_due(due, now).await.unwrap(), 3000);
}

async fn unavailable_clients_are_looked_up_once_per_run(fixture: UpdaterFixture) {
    let names: Vec<String> = (0..4500).map(|n| format!("c{n:04}")).collect();
    let tenantless = |name: &String| host_upsert(name, TenantChange::NotFound(at(0)), None);
    for chunk in names.chunks(900) {
        fixture.insert(chunk.iter().map(tenantless).collect()).await;
    }
    for (n, name) in names.iter().enumerate() {
        if n % 5 != 0 {
            fixture
                .tenant_lookup
                .set_outcome(name, FakeTenantLookup::found("1"));
        }
    }
    fixture.advance_clock(RETRY_INTERVAL_SECONDS + 1);
    let summary = fixture.run(LookupJob::Tenantless).await;
    assert_eq!((summary.found, summary.unavailable), (3600, 900));
    assert_eq!(summary.stop_reason, StopReason::Done);
    let mut requested_clients = fixture.requested_clients();
    requested_clients.sort();
    assert_eq!(requested_clients, names);
    // The next run looks up only the unavailable clients.
    fixture.advance_clock(1);
    assert_eq!(fixture.run(LookupJob::Tenantless).await.unavailable, 900);
}
