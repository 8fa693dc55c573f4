//! Tests of the items S and T of the acceptance list: how the updaters change a row of the table
//! `connections`. The items S concern the inventory refresh. The items T concern the tenant lookup
//! of tenantless clients.

use std::time::Duration;

use domain::{ClientId, ClientInfo, ClientKind, MessageId, Timestamp};
use jobs::{LookupJob, LookupJobConfig, LookupJobRunner, RunOptions, RunSummary, StopReason};
use serde_json::json;
use store::{
    ConnectionUpsert, PresenceBatch, PresenceColumns, ReceivedAt, ReplacedRow, TenantChange,
};
use tenant::TenantLookupOutcome;

use super::{FakeTenantLookup, UpdaterFixture, each_store, tenant, timestamp_at};
use test_support::deployment::ConnectionRow;

each_store!(
    s1_inventory_refresh_skips_tenantless_rows,
    s2_inventory_refresh_clears_org_id_and_account_if_no_tenant_is_found,
    s3_inventory_refresh_keeps_the_stale_timestamp_if_no_tenant_is_found,
    s4_inventory_refresh_increments_the_failure_count_if_no_tenant_is_found,
    s5_inventory_refresh_sets_the_lookup_timestamp_to_now_if_no_tenant_is_found,
    s6_inventory_refresh_sends_an_inventory_message_if_a_tenant_is_found,
    s7_inventory_refresh_resets_the_failure_count_if_a_tenant_is_found,
    s8_inventory_refresh_sets_the_lookup_timestamp_to_null_if_a_tenant_is_found,
    s9_only_a_delivered_inventory_message_updates_the_stale_timestamp,
    s10_inventory_refresh_keeps_the_row_unchanged_if_the_lookup_is_unavailable,
    t1_tenantless_job_skips_rows_with_the_maximum_failure_count,
    t2_tenantless_job_skips_rows_with_a_tenant,
    t3_tenantless_job_keeps_the_stale_timestamp_if_no_tenant_is_found,
    t4_tenantless_job_increments_the_failure_count_if_no_tenant_is_found,
    t5_tenantless_job_sets_the_lookup_timestamp_to_now_if_no_tenant_is_found,
    t6_tenantless_job_sets_org_id_and_account_if_a_tenant_is_found,
    t7_tenantless_job_resets_the_failure_count_if_a_tenant_is_found,
    t8_tenantless_job_sets_the_lookup_timestamp_to_null_if_a_tenant_is_found,
    t9_tenantless_job_first_looks_up_rows_with_the_oldest_lookup_timestamp,
    t10_tenantless_job_waits_for_the_retry_interval_between_two_lookups,
    t11_unavailable_lookup_does_not_count_as_an_attempt,
    t12_tenantless_job_reports_the_host_to_inventory_if_a_tenant_is_found,
    t13_tenantless_job_fails_if_the_database_is_unavailable,
    a_lookup_result_does_not_overwrite_a_newer_row,
    two_concurrent_runs_of_the_tenantless_job_look_up_each_row_only_once,
    inventory_refresh_applies_a_mass_loss_of_tenants_only_with_the_force_option,
    tenantless_job_stops_after_one_chunk_of_unavailable_lookups,
    a_client_whose_lookup_is_unavailable_is_looked_up_once_per_run,
    a_chunk_of_failing_lookups_does_not_end_the_next_run_before_other_clients,
    a_stopped_run_releases_its_claims,
);

const INVENTORY_REFRESH_AFTER_SECONDS: i64 = 25 * 3600;
const LOOKUP_RETRY_INTERVAL_SECONDS: i64 = 1800;

/// Returns the upsert of a host that connected at the initial time of the clock.
fn host_upsert(
    client_id: &str,
    tenant: TenantChange,
    reported_to_inventory_at: Option<Timestamp>,
) -> ConnectionUpsert {
    ConnectionUpsert {
        client_id: ClientId::new(client_id).unwrap(),
        dialect: protocol::status::NAME,
        kind: ClientKind::Host,
        topic_prefix: "p".into(),
        info: ClientInfo {
            canonical_facts: json!({"insights_id": "cabb61b6-e61d-4d70-b475-01f5c009e93c"}),
            catalog_service_facts: json!(null),
            dispatchers: json!({"rhc-worker-playbook": {}}),
            tags: json!(null),
            ..ClientInfo::default()
        },
        message_id: MessageId::new("m").ok(),
        message_sent_at: timestamp_at(0),
        received_at: ReceivedAt::from_time(timestamp_at(0)),
        last_heartbeat_at: None,
        tenant,
        inventory_eligible: true,
        reported_to_inventory_at,
        replaced: ReplacedRow::Any,
        presence: PresenceColumns::default(),
    }
}

impl UpdaterFixture {
    fn job_runner(&self) -> LookupJobRunner {
        LookupJobRunner {
            lookup_queue: self.test_store.lookup_queue.clone(),
            tenant_lookup: self.tenant_lookup.clone(),
            inventory: Some(self.inventory_reporter()),
            clock: self.clock.clone(),
            config: LookupJobConfig {
                max_concurrency: 8,
                lookup_timeout: Duration::from_secs(5),
                inventory_refresh_after: Duration::from_secs(
                    INVENTORY_REFRESH_AFTER_SECONDS.unsigned_abs(),
                ),
                lookup_retry_interval: Duration::from_secs(
                    LOOKUP_RETRY_INTERVAL_SECONDS.unsigned_abs(),
                ),
                max_attempts: 3,
            },
        }
    }

    async fn run_job(&self, job: LookupJob) -> RunSummary {
        self.job_runner()
            .run(job, RunOptions::default(), &|_| {})
            .await
            .unwrap()
    }

    async fn insert_rows(&self, upserts: Vec<ConnectionUpsert>) {
        let batch = PresenceBatch {
            upserts,
            ..PresenceBatch::default()
        };
        self.test_store
            .presence
            .record_batch(&batch, &[], timestamp_at(0))
            .await
            .unwrap();
    }

    /// Inserts a host with a tenant, sets the outcome of the host's next tenant lookup, and
    /// advances the clock until the host is due for an inventory refresh. Returns the host's row.
    async fn insert_host_due_for_refresh(
        &self,
        client_id: &str,
        outcome: TenantLookupOutcome,
    ) -> ConnectionRow {
        let found = TenantChange::Found(tenant("1"));
        let host = host_upsert(client_id, found, Some(timestamp_at(0)));
        self.insert_rows(vec![host]).await;
        self.tenant_lookup.set_outcome(client_id, outcome);
        self.advance_clock(INVENTORY_REFRESH_AFTER_SECONDS + 1);
        self.row(client_id).await
    }

    /// Inserts a tenantless client, sets the outcome of the client's next tenant lookup, and
    /// advances the clock until the client is due for a lookup. Returns the client's row.
    async fn insert_tenantless_client(
        &self,
        client_id: &str,
        outcome: TenantLookupOutcome,
    ) -> ConnectionRow {
        let not_found = TenantChange::NotFound(timestamp_at(0));
        self.insert_rows(vec![host_upsert(client_id, not_found, None)])
            .await;
        self.tenant_lookup.set_outcome(client_id, outcome);
        self.advance_clock(LOOKUP_RETRY_INTERVAL_SECONDS + 1);
        self.row(client_id).await
    }

    async fn row(&self, client_id: &str) -> ConnectionRow {
        self.test_store.row(client_id).await.unwrap()
    }

    fn requested_client_ids(&self) -> Vec<String> {
        self.tenant_lookup.requested_client_ids.lock().clone()
    }

    fn now_seconds(&self) -> i64 {
        self.clock.0.lock().as_second()
    }
}

async fn s1_inventory_refresh_skips_tenantless_rows(fixture: UpdaterFixture) {
    fixture
        .insert_tenantless_client("a", FakeTenantLookup::found_outcome("1"))
        .await;
    fixture.advance_clock(INVENTORY_REFRESH_AFTER_SECONDS);
    assert_eq!(
        fixture.run_job(LookupJob::InventoryRefresh).await,
        RunSummary::default()
    );
    assert!(fixture.requested_client_ids().is_empty());
}

async fn s2_inventory_refresh_clears_org_id_and_account_if_no_tenant_is_found(
    fixture: UpdaterFixture,
) {
    fixture
        .insert_host_due_for_refresh("a", TenantLookupOutcome::NotFound)
        .await;
    fixture.run_job(LookupJob::InventoryRefresh).await;
    let row = fixture.row("a").await;
    assert_eq!((row.org_id.as_str(), row.account.as_str()), ("", ""));
}

async fn s3_inventory_refresh_keeps_the_stale_timestamp_if_no_tenant_is_found(
    fixture: UpdaterFixture,
) {
    let row_before = fixture
        .insert_host_due_for_refresh("a", TenantLookupOutcome::NotFound)
        .await;
    fixture.run_job(LookupJob::InventoryRefresh).await;
    assert_eq!(
        fixture.row("a").await.stale_timestamp,
        row_before.stale_timestamp
    );
    assert!(
        fixture.inventory.messages.lock().is_empty(),
        "a message was sent to inventory"
    );
}

async fn s4_inventory_refresh_increments_the_failure_count_if_no_tenant_is_found(
    fixture: UpdaterFixture,
) {
    fixture
        .insert_host_due_for_refresh("a", TenantLookupOutcome::NotFound)
        .await;
    fixture.run_job(LookupJob::InventoryRefresh).await;
    assert_eq!(fixture.row("a").await.tenant_lookup_failure_count, 1);
}

async fn s5_inventory_refresh_sets_the_lookup_timestamp_to_now_if_no_tenant_is_found(
    fixture: UpdaterFixture,
) {
    fixture
        .insert_host_due_for_refresh("a", TenantLookupOutcome::NotFound)
        .await;
    fixture.run_job(LookupJob::InventoryRefresh).await;
    assert_eq!(
        fixture.row("a").await.tenant_lookup_timestamp,
        Some(fixture.now_seconds())
    );
}

async fn s6_inventory_refresh_sends_an_inventory_message_if_a_tenant_is_found(
    fixture: UpdaterFixture,
) {
    fixture
        .insert_host_due_for_refresh("a", FakeTenantLookup::found_outcome("1"))
        .await;
    let summary = fixture.run_job(LookupJob::InventoryRefresh).await;
    assert_eq!((summary.found_clients, summary.delivered_reports), (1, 1));
    assert_eq!(fixture.inventory.messages.lock()[0]["data"]["org_id"], "1");
}

async fn s7_inventory_refresh_resets_the_failure_count_if_a_tenant_is_found(
    fixture: UpdaterFixture,
) {
    fixture
        .insert_host_due_for_refresh("a", FakeTenantLookup::found_outcome("1"))
        .await;
    let sql = "UPDATE connections SET tenant_lookup_failure_count = 2";
    fixture.test_store.execute(sql).await;
    fixture.run_job(LookupJob::InventoryRefresh).await;
    assert_eq!(fixture.row("a").await.tenant_lookup_failure_count, 0);
}

async fn s8_inventory_refresh_sets_the_lookup_timestamp_to_null_if_a_tenant_is_found(
    fixture: UpdaterFixture,
) {
    fixture
        .insert_host_due_for_refresh("a", FakeTenantLookup::found_outcome("1"))
        .await;
    fixture.run_job(LookupJob::InventoryRefresh).await;
    assert_eq!(fixture.row("a").await.tenant_lookup_timestamp, None);
}

async fn s9_only_a_delivered_inventory_message_updates_the_stale_timestamp(
    fixture: UpdaterFixture,
) {
    let row_before = fixture
        .insert_host_due_for_refresh("a", FakeTenantLookup::found_outcome("1"))
        .await;
    *fixture.inventory.is_unavailable.lock() = true;
    let summary = fixture.run_job(LookupJob::InventoryRefresh).await;
    assert_eq!((summary.delivered_reports, summary.pending_reports), (0, 1));
    assert_eq!(
        fixture.row("a").await.stale_timestamp,
        row_before.stale_timestamp
    );
    // The next run retries the inventory message.
    *fixture.inventory.is_unavailable.lock() = false;
    fixture.advance_clock(3600);
    assert_eq!(
        fixture
            .run_job(LookupJob::InventoryRefresh)
            .await
            .delivered_reports,
        1
    );
    assert_eq!(
        fixture.row("a").await.stale_timestamp,
        fixture.now_seconds()
    );
    assert_eq!(
        fixture.run_job(LookupJob::InventoryRefresh).await,
        RunSummary::default()
    );
}

async fn s10_inventory_refresh_keeps_the_row_unchanged_if_the_lookup_is_unavailable(
    fixture: UpdaterFixture,
) {
    let row_before = fixture
        .insert_host_due_for_refresh("a", TenantLookupOutcome::Unavailable)
        .await;
    let summary = fixture.run_job(LookupJob::InventoryRefresh).await;
    assert!(summary.is_failure(), "{summary}");
    assert_eq!(fixture.row("a").await, row_before);
}

async fn t1_tenantless_job_skips_rows_with_the_maximum_failure_count(fixture: UpdaterFixture) {
    fixture
        .insert_tenantless_client("a", TenantLookupOutcome::NotFound)
        .await;
    for n in 1..=3 {
        assert_eq!(
            fixture
                .run_job(LookupJob::Tenantless)
                .await
                .not_found_clients,
            1
        );
        assert_eq!(fixture.row("a").await.tenant_lookup_failure_count, n);
        fixture.advance_clock(LOOKUP_RETRY_INTERVAL_SECONDS + 1);
    }
    assert_eq!(
        fixture.run_job(LookupJob::Tenantless).await,
        RunSummary::default()
    );
    let counts = fixture
        .test_store
        .lookup_queue
        .count_tenantless_clients(3)
        .await
        .unwrap();
    assert_eq!((counts.pending_clients, counts.exhausted_clients), (0, 1));
}

async fn t2_tenantless_job_skips_rows_with_a_tenant(fixture: UpdaterFixture) {
    fixture
        .insert_host_due_for_refresh("a", FakeTenantLookup::found_outcome("1"))
        .await;
    assert_eq!(
        fixture.run_job(LookupJob::Tenantless).await,
        RunSummary::default()
    );
}

async fn t3_tenantless_job_keeps_the_stale_timestamp_if_no_tenant_is_found(
    fixture: UpdaterFixture,
) {
    let row_before = fixture
        .insert_tenantless_client("a", TenantLookupOutcome::NotFound)
        .await;
    fixture.run_job(LookupJob::Tenantless).await;
    assert_eq!(
        fixture.row("a").await.stale_timestamp,
        row_before.stale_timestamp
    );
}

async fn t4_tenantless_job_increments_the_failure_count_if_no_tenant_is_found(
    fixture: UpdaterFixture,
) {
    fixture
        .insert_tenantless_client("a", TenantLookupOutcome::NotFound)
        .await;
    fixture.run_job(LookupJob::Tenantless).await;
    assert_eq!(fixture.row("a").await.tenant_lookup_failure_count, 1);
}

async fn t5_tenantless_job_sets_the_lookup_timestamp_to_now_if_no_tenant_is_found(
    fixture: UpdaterFixture,
) {
    fixture
        .insert_tenantless_client("a", TenantLookupOutcome::NotFound)
        .await;
    fixture.run_job(LookupJob::Tenantless).await;
    assert_eq!(
        fixture.row("a").await.tenant_lookup_timestamp,
        Some(fixture.now_seconds())
    );
}

async fn t6_tenantless_job_sets_org_id_and_account_if_a_tenant_is_found(fixture: UpdaterFixture) {
    fixture
        .insert_tenantless_client("a", FakeTenantLookup::found_outcome("7"))
        .await;
    fixture.run_job(LookupJob::Tenantless).await;
    let row = fixture.row("a").await;
    assert_eq!((row.org_id.as_str(), row.account.as_str()), ("7", "42"));
}

async fn t7_tenantless_job_resets_the_failure_count_if_a_tenant_is_found(fixture: UpdaterFixture) {
    fixture
        .insert_tenantless_client("a", FakeTenantLookup::found_outcome("7"))
        .await;
    let sql = "UPDATE connections SET tenant_lookup_failure_count = 2";
    fixture.test_store.execute(sql).await;
    fixture.run_job(LookupJob::Tenantless).await;
    assert_eq!(fixture.row("a").await.tenant_lookup_failure_count, 0);
}

async fn t8_tenantless_job_sets_the_lookup_timestamp_to_null_if_a_tenant_is_found(
    fixture: UpdaterFixture,
) {
    fixture
        .insert_tenantless_client("a", FakeTenantLookup::found_outcome("7"))
        .await;
    fixture.run_job(LookupJob::Tenantless).await;
    assert_eq!(fixture.row("a").await.tenant_lookup_timestamp, None);
}

async fn t9_tenantless_job_first_looks_up_rows_with_the_oldest_lookup_timestamp(
    fixture: UpdaterFixture,
) {
    for (client_id, lookup_second) in [("young", 30), ("old", 10), ("middle", 20)] {
        let not_found = TenantChange::NotFound(timestamp_at(lookup_second));
        fixture
            .insert_rows(vec![host_upsert(client_id, not_found, None)])
            .await;
        fixture
            .tenant_lookup
            .set_outcome(client_id, TenantLookupOutcome::NotFound);
    }
    fixture.advance_clock(LOOKUP_RETRY_INTERVAL_SECONDS + 60);
    for client_id in ["old", "middle", "young"] {
        let limit_one_row = RunOptions {
            max_rows: Some(1),
            allow_mass_loss: false,
        };
        let runner = fixture.job_runner();
        runner
            .run(LookupJob::Tenantless, limit_one_row, &|_| {})
            .await
            .unwrap();
        assert_eq!(fixture.requested_client_ids().last().unwrap(), client_id);
    }
}

async fn t10_tenantless_job_waits_for_the_retry_interval_between_two_lookups(
    fixture: UpdaterFixture,
) {
    fixture
        .insert_tenantless_client("a", TenantLookupOutcome::NotFound)
        .await;
    fixture.run_job(LookupJob::Tenantless).await;
    fixture.advance_clock(LOOKUP_RETRY_INTERVAL_SECONDS);
    assert_eq!(
        fixture.run_job(LookupJob::Tenantless).await,
        RunSummary::default()
    );
    fixture.advance_clock(1);
    assert_eq!(
        fixture
            .run_job(LookupJob::Tenantless)
            .await
            .not_found_clients,
        1
    );
}

async fn t11_unavailable_lookup_does_not_count_as_an_attempt(fixture: UpdaterFixture) {
    let row_before = fixture
        .insert_tenantless_client("a", TenantLookupOutcome::Unavailable)
        .await;
    for _ in 0..5 {
        let summary = fixture.run_job(LookupJob::Tenantless).await;
        assert_eq!(summary.unavailable_lookups, 1, "{summary}");
        assert_eq!(fixture.row("a").await, row_before);
        fixture.advance_clock(1);
    }
    // The row is still due. After an unavailable lookup, the job does not wait for the retry
    // interval.
    fixture
        .tenant_lookup
        .set_outcome("a", FakeTenantLookup::found_outcome("1"));
    assert_eq!(
        fixture.run_job(LookupJob::Tenantless).await.found_clients,
        1
    );
}

async fn t12_tenantless_job_reports_the_host_to_inventory_if_a_tenant_is_found(
    fixture: UpdaterFixture,
) {
    fixture
        .insert_tenantless_client("a", FakeTenantLookup::found_outcome("7"))
        .await;
    assert_eq!(
        fixture
            .run_job(LookupJob::Tenantless)
            .await
            .delivered_reports,
        1
    );
    assert_eq!(fixture.inventory.messages.lock()[0]["data"]["org_id"], "7");
    assert_eq!(
        fixture.row("a").await.stale_timestamp,
        fixture.now_seconds()
    );
}

async fn t13_tenantless_job_fails_if_the_database_is_unavailable(fixture: UpdaterFixture) {
    fixture
        .insert_tenantless_client("a", FakeTenantLookup::found_outcome("7"))
        .await;
    fixture.test_store.maintenance.close().await;
    let runner = fixture.job_runner();
    let run = runner.run(LookupJob::Tenantless, RunOptions::default(), &|_| {});
    assert!(run.await.is_err());
}

async fn a_lookup_result_does_not_overwrite_a_newer_row(fixture: UpdaterFixture) {
    fixture
        .insert_tenantless_client("a", TenantLookupOutcome::NotFound)
        .await;
    let due = fixture.job_runner().due_criteria(LookupJob::Tenantless);
    let now = *fixture.clock.0.lock();
    let claimed = fixture
        .test_store
        .lookup_queue
        .claim_for_lookup(due, 10, now, now + Duration::from_mins(1))
        .await
        .unwrap();
    // Before the lookup result is saved, the recorder processes an online message and finds a
    // tenant.
    let found = TenantChange::Found(tenant("9"));
    let batch = PresenceBatch {
        upserts: vec![host_upsert("a", found, None)],
        ..PresenceBatch::default()
    };
    fixture
        .test_store
        .presence
        .record_batch(&batch, &[], now)
        .await
        .unwrap();
    let result = store::LookupResult {
        client_id: claimed[0].client_id.clone(),
        row_version: claimed[0].row_version,
        outcome: store::LookupOutcome::NotFound,
    };
    assert_eq!(
        fixture
            .test_store
            .lookup_queue
            .save_lookup_results(&[result], now)
            .await
            .unwrap(),
        0
    );
    assert_eq!(fixture.row("a").await.org_id, "9");
}

async fn two_concurrent_runs_of_the_tenantless_job_look_up_each_row_only_once(
    fixture: UpdaterFixture,
) {
    let client_ids: Vec<String> = (0..200).map(|n| format!("c{n:03}")).collect();
    let tenantless =
        |client_id: &String| host_upsert(client_id, TenantChange::NotFound(timestamp_at(0)), None);
    fixture
        .insert_rows(client_ids.iter().map(tenantless).collect())
        .await;
    for client_id in &client_ids {
        fixture
            .tenant_lookup
            .set_outcome(client_id, FakeTenantLookup::found_outcome("1"));
    }
    fixture.advance_clock(LOOKUP_RETRY_INTERVAL_SECONDS + 1);
    let (first, second) = tokio::join!(
        fixture.run_job(LookupJob::Tenantless),
        fixture.run_job(LookupJob::Tenantless)
    );
    assert_eq!(first.found_clients + second.found_clients, 200);
    let mut requested_client_ids = fixture.requested_client_ids();
    requested_client_ids.sort();
    assert_eq!(requested_client_ids, client_ids);
}

async fn inventory_refresh_applies_a_mass_loss_of_tenants_only_with_the_force_option(
    fixture: UpdaterFixture,
) {
    let client_ids: Vec<String> = (0..60).map(|n| format!("c{n:03}")).collect();
    let with_tenant = |client_id: &String| {
        host_upsert(
            client_id,
            TenantChange::Found(tenant("1")),
            Some(timestamp_at(0)),
        )
    };
    fixture
        .insert_rows(client_ids.iter().map(with_tenant).collect())
        .await;
    for client_id in &client_ids {
        fixture
            .tenant_lookup
            .set_outcome(client_id, TenantLookupOutcome::NotFound);
    }
    fixture.advance_clock(INVENTORY_REFRESH_AFTER_SECONDS + 1);
    let summary = fixture.run_job(LookupJob::InventoryRefresh).await;
    assert_eq!(summary.stop_reason, StopReason::MassLoss);
    assert!(summary.is_failure());
    for client_id in &client_ids {
        assert_eq!(
            fixture.row(client_id).await.org_id,
            "1",
            "the run removed the client's tenant"
        );
    }
    fixture.advance_clock(1);
    let force_options = RunOptions {
        max_rows: None,
        allow_mass_loss: true,
    };
    let runner = fixture.job_runner();
    let summary = runner
        .run(LookupJob::InventoryRefresh, force_options, &|_| {})
        .await
        .unwrap();
    assert_eq!(summary.not_found_clients, 60);
}

async fn tenantless_job_stops_after_one_chunk_of_unavailable_lookups(fixture: UpdaterFixture) {
    let tenantless = |n: i32| {
        let client_id = format!("c{n:04}");
        host_upsert(&client_id, TenantChange::NotFound(timestamp_at(0)), None)
    };
    for from in [0, 1000, 2000] {
        fixture
            .insert_rows((from..from + 1000).map(tenantless).collect())
            .await;
    }
    fixture.advance_clock(LOOKUP_RETRY_INTERVAL_SECONDS + 1);
    let summary = fixture.run_job(LookupJob::Tenantless).await;
    assert_eq!(summary.stop_reason, StopReason::LookupUnavailable);
    assert_eq!(
        summary.unavailable_lookups, 2000,
        "expected lookups of one chunk"
    );
    // All rows are still due, including the rows that the run did not look up.
    fixture.advance_clock(1);
    let due = fixture.job_runner().due_criteria(LookupJob::Tenantless);
    let now = *fixture.clock.0.lock();
    assert_eq!(
        fixture
            .test_store
            .lookup_queue
            .count_due_rows(due, now)
            .await
            .unwrap(),
        3000
    );
}

async fn a_client_whose_lookup_is_unavailable_is_looked_up_once_per_run(fixture: UpdaterFixture) {
    let client_ids: Vec<String> = (0..4500).map(|n| format!("c{n:04}")).collect();
    let tenantless =
        |client_id: &String| host_upsert(client_id, TenantChange::NotFound(timestamp_at(0)), None);
    for chunk in client_ids.chunks(900) {
        fixture
            .insert_rows(chunk.iter().map(tenantless).collect())
            .await;
    }
    for (n, client_id) in client_ids.iter().enumerate() {
        if n % 5 != 0 {
            fixture
                .tenant_lookup
                .set_outcome(client_id, FakeTenantLookup::found_outcome("1"));
        }
    }
    fixture.advance_clock(LOOKUP_RETRY_INTERVAL_SECONDS + 1);
    let summary = fixture.run_job(LookupJob::Tenantless).await;
    assert_eq!(
        (summary.found_clients, summary.unavailable_lookups),
        (3600, 900)
    );
    assert_eq!(summary.stop_reason, StopReason::Done);
    let mut requested_client_ids = fixture.requested_client_ids();
    requested_client_ids.sort();
    assert_eq!(requested_client_ids, client_ids);
    // The next run looks up only the clients whose lookup was unavailable.
    fixture.advance_clock(1);
    assert_eq!(
        fixture
            .run_job(LookupJob::Tenantless)
            .await
            .unavailable_lookups,
        900
    );
}

async fn a_chunk_of_failing_lookups_does_not_end_the_next_run_before_other_clients(
    fixture: UpdaterFixture,
) {
    let tenantless = |client_id: &str, looked_up_at| {
        let not_found = TenantChange::NotFound(timestamp_at(looked_up_at));
        host_upsert(client_id, not_found, None)
    };
    for from in [0, 1000] {
        let client_ids = (from..from + 1000).map(|n: i32| format!("failing{n}"));
        let upserts = client_ids.map(|client_id| tenantless(&client_id, 0));
        fixture.insert_rows(upserts.collect()).await;
    }
    fixture.insert_rows(vec![tenantless("working", 1)]).await;
    let found = FakeTenantLookup::found_outcome("1");
    fixture.tenant_lookup.set_outcome("working", found);
    fixture.advance_clock(LOOKUP_RETRY_INTERVAL_SECONDS + 2);
    let summary = fixture.run_job(LookupJob::Tenantless).await;
    assert_eq!(summary.stop_reason, StopReason::LookupUnavailable);
    assert_eq!(summary.unavailable_lookups, 2000);
    assert_eq!(fixture.row("working").await.org_id, "");
    fixture.advance_clock(1);
    let summary = fixture.run_job(LookupJob::Tenantless).await;
    assert_eq!(summary.found_clients, 1);
    assert_eq!(summary.unavailable_lookups, 2000);
    assert_eq!(fixture.row("working").await.org_id, "1");
}

async fn a_stopped_run_releases_its_claims(fixture: UpdaterFixture) {
    let tenantless = |n: i32| {
        let client_id = format!("c{n}");
        fixture
            .tenant_lookup
            .set_outcome(&client_id, FakeTenantLookup::found_outcome("1"));
        host_upsert(&client_id, TenantChange::NotFound(timestamp_at(0)), None)
    };
    for from in [0, 1000, 2000] {
        fixture
            .insert_rows((from..from + 1000).map(tenantless).collect())
            .await;
    }
    fixture.advance_clock(LOOKUP_RETRY_INTERVAL_SECONDS + 1);
    // Stops after the first chunk was looked up, before its results are saved.
    let stop = tokio::sync::Notify::new();
    let stop_run = |_: &RunSummary| stop.notify_one();
    let runner = fixture.job_runner();
    let run = runner.run_until(
        LookupJob::Tenantless,
        RunOptions::default(),
        &stop_run,
        stop.notified(),
    );
    assert_eq!(run.await.unwrap(), None);
    fixture.advance_clock(1);
    let due = runner.due_criteria(LookupJob::Tenantless);
    let now = *fixture.clock.0.lock();
    let due_rows = fixture.test_store.lookup_queue.count_due_rows(due, now);
    assert_eq!(due_rows.await.unwrap(), 3000);
}
