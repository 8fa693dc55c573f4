//! S and T: what the updaters do to a row.

use std::sync::Arc;
use std::time::Duration;

use cloud_connector::domain::{ClientInfo, ClientKind, Dialect, MessageId, Timestamp};
use cloud_connector::jobs::{
    LookupJob, LookupSettings, RunOptions, StopReason, Summary, TenantLookupJob,
};
use cloud_connector::store::{ConnectionUpsert, PresenceBatch, ReceivedAt, Store, TenantChange};
use cloud_connector::tenant::TenantLookupOutcome;
use serde_json::json;

use super::{FakeTenantLookup, UpdaterFixture, at, client, on_every_store, tenant};
use crate::support::deployment::Row;

on_every_store!(
    s1_the_stale_updater_skips_tenantless_rows,
    s2_not_found_clears_the_organisation_and_the_account,
    s3_not_found_keeps_the_stale_timestamp,
    s4_not_found_increments_the_count,
    s5_not_found_sets_the_lookup_timestamp_to_now,
    s6_found_sends_the_inventory_message,
    s7_found_sets_the_count_to_zero,
    s8_found_sets_the_lookup_timestamp_to_null,
    s9_the_stale_timestamp_moves_only_with_a_delivered_inventory_message,
    s10_unavailable_leaves_the_row_untouched,
    t1_ignores_those_that_were_tried_too_often,
    t2_ignores_rows_with_a_tenant,
    t3_not_found_keeps_the_stale_timestamp,
    t4_not_found_increments_the_count,
    t5_not_found_sets_the_lookup_timestamp_to_now,
    t6_found_sets_the_organisation_and_the_account,
    t7_found_sets_the_count_to_zero,
    t8_found_sets_the_lookup_timestamp_to_null,
    t9_oldest_first,
    t10_the_retry_offset_is_respected,
    t11_unavailable_never_uses_up_an_attempt,
    t12_found_announces_the_host_to_inventory,
    t13_a_database_that_is_down_fails_the_run,
    a_row_that_changed_meanwhile_is_not_overwritten,
    two_at_once_never_do_a_row_twice,
    a_mass_loss_is_not_believed_unless_forced,
    no_answers_end_a_run_early,
    who_has_no_answer_is_asked_about_once_a_run,
);

const STALE_AFTER: i64 = 25 * 3600;
const RETRY_AFTER: i64 = 1800;

fn arrival(
    name: &str,
    tenant: TenantChange,
    reported_to_inventory_at: Option<Timestamp>,
) -> ConnectionUpsert {
    ConnectionUpsert {
        client_id: client(name),
        dialect: Dialect::Status,
        kind: ClientKind::Host,
        topic_prefix: "p".into(),
        reported: ClientInfo {
            canonical_facts: json!({"insights_id": "cabb61b6-e61d-4d70-b475-01f5c009e93c"}),
            catalog_service_facts: json!(null),
            dispatchers: json!({"rhc-worker-playbook": {}}),
            tags: json!(null),
            client_name: String::new(),
            client_version: String::new(),
        },
        message_id: MessageId::new("m").ok(),
        message_sent: at(0),
        heard: ReceivedAt {
            at: at(0),
            place: None,
        },
        last_heartbeat_at: None,
        tenant,
        inventory_eligible: true,
        reported_to_inventory_at,
    }
}

impl UpdaterFixture {
    fn store(&self) -> Arc<dyn Store> {
        self.subject.store.clone()
    }

    fn updater(&self) -> TenantLookupJob {
        TenantLookupJob {
            store: self.store(),
            tenants: self.script.clone(),
            inventory: Some(self.announcer()),
            clock: self.clock.clone(),
            settings: LookupSettings {
                at_once: 8,
                within: Duration::from_secs(5),
                stale_after: Duration::from_secs(STALE_AFTER.unsigned_abs()),
                retry_after: Duration::from_secs(RETRY_AFTER.unsigned_abs()),
                max_attempts: 3,
            },
        }
    }

    async fn run(&self, which: LookupJob) -> Summary {
        let run = self.updater();
        run.run(which, RunOptions::default(), &|_| {})
            .await
            .unwrap()
    }

    async fn arrive(&self, arrivals: Vec<ConnectionUpsert>) {
        let batch = PresenceBatch {
            arrivals,
            ..PresenceBatch::default()
        };
        self.store().record_batch(&batch, &[], at(0)).await.unwrap();
    }

    /// A host whose turn with inventory has come, and what the gateway says of it.
    async fn stale(&self, name: &str, says: TenantLookupOutcome) -> Row {
        let due = TenantChange::Found(tenant("1"));
        self.arrive(vec![arrival(name, due, Some(at(0)))]).await;
        self.script.answer(name, says);
        self.later(STALE_AFTER + 1);
        self.subject.row(name).await.unwrap()
    }

    /// A client without a tenant whose turn has come, and what the gateway says of it.
    async fn tenantless(&self, name: &str, says: TenantLookupOutcome) -> Row {
        let due = TenantChange::NotFound(at(0));
        self.arrive(vec![arrival(name, due, None)]).await;
        self.script.answer(name, says);
        self.later(RETRY_AFTER + 1);
        self.subject.row(name).await.unwrap()
    }

    async fn row(&self, name: &str) -> Row {
        self.subject.row(name).await.unwrap()
    }

    fn asked(&self) -> Vec<String> {
        self.script.asked.lock().clone()
    }

    fn now(&self) -> i64 {
        self.clock.0.lock().as_second()
    }
}

async fn s1_the_stale_updater_skips_tenantless_rows(scene: UpdaterFixture) {
    scene.tenantless("a", FakeTenantLookup::found("1")).await;
    scene.later(STALE_AFTER);
    assert_eq!(
        scene.run(LookupJob::InventoryRefresh).await,
        Summary::default()
    );
    assert!(scene.asked().is_empty());
}

async fn s2_not_found_clears_the_organisation_and_the_account(scene: UpdaterFixture) {
    scene.stale("a", TenantLookupOutcome::NotFound).await;
    scene.run(LookupJob::InventoryRefresh).await;
    let row = scene.row("a").await;
    assert_eq!((row.org_id.as_str(), row.account.as_str()), ("", ""));
}

async fn s3_not_found_keeps_the_stale_timestamp(scene: UpdaterFixture) {
    let before = scene.stale("a", TenantLookupOutcome::NotFound).await;
    scene.run(LookupJob::InventoryRefresh).await;
    assert_eq!(scene.row("a").await.stale, before.stale);
    assert!(scene.ear.heard.lock().is_empty(), "nothing is sent");
}

async fn s4_not_found_increments_the_count(scene: UpdaterFixture) {
    scene.stale("a", TenantLookupOutcome::NotFound).await;
    scene.run(LookupJob::InventoryRefresh).await;
    assert_eq!(scene.row("a").await.failures, 1);
}

async fn s5_not_found_sets_the_lookup_timestamp_to_now(scene: UpdaterFixture) {
    scene.stale("a", TenantLookupOutcome::NotFound).await;
    scene.run(LookupJob::InventoryRefresh).await;
    assert_eq!(scene.row("a").await.looked_up, Some(scene.now()));
}

async fn s6_found_sends_the_inventory_message(scene: UpdaterFixture) {
    scene.stale("a", FakeTenantLookup::found("1")).await;
    let summary = scene.run(LookupJob::InventoryRefresh).await;
    assert_eq!((summary.found, summary.announced), (1, 1));
    assert_eq!(scene.ear.heard.lock()[0]["data"]["org_id"], "1");
}

async fn s7_found_sets_the_count_to_zero(scene: UpdaterFixture) {
    scene.stale("a", FakeTenantLookup::found("1")).await;
    let count = "UPDATE connections SET tenant_lookup_failure_count = 2";
    scene.subject.execute(count).await;
    scene.run(LookupJob::InventoryRefresh).await;
    assert_eq!(scene.row("a").await.failures, 0);
}

async fn s8_found_sets_the_lookup_timestamp_to_null(scene: UpdaterFixture) {
    scene.stale("a", FakeTenantLookup::found("1")).await;
    scene.run(LookupJob::InventoryRefresh).await;
    assert_eq!(scene.row("a").await.looked_up, None);
}

async fn s9_the_stale_timestamp_moves_only_with_a_delivered_inventory_message(
    scene: UpdaterFixture,
) {
    let before = scene.stale("a", FakeTenantLookup::found("1")).await;
    *scene.ear.is_away.lock() = true;
    let summary = scene.run(LookupJob::InventoryRefresh).await;
    assert_eq!((summary.announced, summary.owed), (0, 1));
    assert_eq!(scene.row("a").await.stale, before.stale);
    // Once a run, and again in the next.
    *scene.ear.is_away.lock() = false;
    scene.later(3600);
    assert_eq!(scene.run(LookupJob::InventoryRefresh).await.announced, 1);
    assert_eq!(scene.row("a").await.stale, scene.now());
    assert_eq!(
        scene.run(LookupJob::InventoryRefresh).await,
        Summary::default()
    );
}

async fn s10_unavailable_leaves_the_row_untouched(scene: UpdaterFixture) {
    let before = scene.stale("a", TenantLookupOutcome::Unavailable).await;
    let summary = scene.run(LookupJob::InventoryRefresh).await;
    assert!(summary.is_failure(), "{summary}");
    assert_eq!(scene.row("a").await, before);
}

async fn t1_ignores_those_that_were_tried_too_often(scene: UpdaterFixture) {
    scene.tenantless("a", TenantLookupOutcome::NotFound).await;
    for n in 1..=3 {
        assert_eq!(scene.run(LookupJob::TenantlessClient).await.not_found, 1);
        assert_eq!(scene.row("a").await.failures, n);
        scene.later(RETRY_AFTER + 1);
    }
    assert_eq!(
        scene.run(LookupJob::TenantlessClient).await,
        Summary::default()
    );
    let counts = scene.store().count_tenantless(3).await.unwrap();
    assert_eq!((counts.waiting, counts.exhausted), (0, 1));
}

async fn t2_ignores_rows_with_a_tenant(scene: UpdaterFixture) {
    scene.stale("a", FakeTenantLookup::found("1")).await;
    assert_eq!(
        scene.run(LookupJob::TenantlessClient).await,
        Summary::default()
    );
}

async fn t3_not_found_keeps_the_stale_timestamp(scene: UpdaterFixture) {
    let before = scene.tenantless("a", TenantLookupOutcome::NotFound).await;
    scene.run(LookupJob::TenantlessClient).await;
    assert_eq!(scene.row("a").await.stale, before.stale);
}

async fn t4_not_found_increments_the_count(scene: UpdaterFixture) {
    scene.tenantless("a", TenantLookupOutcome::NotFound).await;
    scene.run(LookupJob::TenantlessClient).await;
    assert_eq!(scene.row("a").await.failures, 1);
}

async fn t5_not_found_sets_the_lookup_timestamp_to_now(scene: UpdaterFixture) {
    scene.tenantless("a", TenantLookupOutcome::NotFound).await;
    scene.run(LookupJob::TenantlessClient).await;
    assert_eq!(scene.row("a").await.looked_up, Some(scene.now()));
}

async fn t6_found_sets_the_organisation_and_the_account(scene: UpdaterFixture) {
    scene.tenantless("a", FakeTenantLookup::found("7")).await;
    scene.run(LookupJob::TenantlessClient).await;
    let row = scene.row("a").await;
    assert_eq!((row.org_id.as_str(), row.account.as_str()), ("7", "42"));
}

async fn t7_found_sets_the_count_to_zero(scene: UpdaterFixture) {
    scene.tenantless("a", FakeTenantLookup::found("7")).await;
    let count = "UPDATE connections SET tenant_lookup_failure_count = 2";
    scene.subject.execute(count).await;
    scene.run(LookupJob::TenantlessClient).await;
    assert_eq!(scene.row("a").await.failures, 0);
}

async fn t8_found_sets_the_lookup_timestamp_to_null(scene: UpdaterFixture) {
    scene.tenantless("a", FakeTenantLookup::found("7")).await;
    scene.run(LookupJob::TenantlessClient).await;
    assert_eq!(scene.row("a").await.looked_up, None);
}

async fn t9_oldest_first(scene: UpdaterFixture) {
    for (name, second) in [("young", 30), ("old", 10), ("middle", 20)] {
        let due = TenantChange::NotFound(at(second));
        scene.arrive(vec![arrival(name, due, None)]).await;
        scene.script.answer(name, TenantLookupOutcome::NotFound);
    }
    scene.later(RETRY_AFTER + 60);
    for name in ["old", "middle", "young"] {
        let request = RunOptions {
            limit: Some(1),
            force: false,
        };
        let updater = scene.updater();
        updater
            .run(LookupJob::TenantlessClient, request, &|_| {})
            .await
            .unwrap();
        assert_eq!(scene.asked().last().unwrap(), name);
    }
}

async fn t10_the_retry_offset_is_respected(scene: UpdaterFixture) {
    scene.tenantless("a", TenantLookupOutcome::NotFound).await;
    scene.run(LookupJob::TenantlessClient).await;
    scene.later(RETRY_AFTER);
    assert_eq!(
        scene.run(LookupJob::TenantlessClient).await,
        Summary::default()
    );
    scene.later(1);
    assert_eq!(scene.run(LookupJob::TenantlessClient).await.not_found, 1);
}

async fn t11_unavailable_never_uses_up_an_attempt(scene: UpdaterFixture) {
    let before = scene
        .tenantless("a", TenantLookupOutcome::Unavailable)
        .await;
    for _ in 0..5 {
        let summary = scene.run(LookupJob::TenantlessClient).await;
        assert_eq!(summary.unavailable, 1, "{summary}");
        assert_eq!(scene.row("a").await, before);
        scene.later(1);
    }
    // Due at once when there are answers again.
    scene.script.answer("a", FakeTenantLookup::found("1"));
    assert_eq!(scene.run(LookupJob::TenantlessClient).await.found, 1);
}

async fn t12_found_announces_the_host_to_inventory(scene: UpdaterFixture) {
    scene.tenantless("a", FakeTenantLookup::found("7")).await;
    assert_eq!(scene.run(LookupJob::TenantlessClient).await.announced, 1);
    assert_eq!(scene.ear.heard.lock()[0]["data"]["org_id"], "7");
    assert_eq!(scene.row("a").await.stale, scene.now());
}

async fn t13_a_database_that_is_down_fails_the_run(scene: UpdaterFixture) {
    scene.tenantless("a", FakeTenantLookup::found("7")).await;
    scene.store().close().await;
    let updater = scene.updater();
    let run = updater.run(LookupJob::TenantlessClient, RunOptions::default(), &|_| {});
    assert!(run.await.is_err());
}

async fn a_row_that_changed_meanwhile_is_not_overwritten(scene: UpdaterFixture) {
    scene.tenantless("a", TenantLookupOutcome::NotFound).await;
    let due = scene.updater().due(LookupJob::TenantlessClient);
    let now = *scene.clock.0.lock();
    let claimed = scene
        .store()
        .claim_for_lookup(due, 10, now, now + Duration::from_mins(1))
        .await
        .unwrap();
    // An online arrives, and with it a tenant.
    let found = TenantChange::Found(tenant("9"));
    let batch = PresenceBatch {
        arrivals: vec![arrival("a", found, None)],
        ..PresenceBatch::default()
    };
    scene.store().record_batch(&batch, &[], now).await.unwrap();
    let finding = cloud_connector::store::LookupResult {
        client_id: claimed[0].client_id.clone(),
        version: claimed[0].version,
        outcome: cloud_connector::store::LookupOutcome::NotFound,
    };
    assert_eq!(
        scene
            .store()
            .save_lookup_results(&[finding], now)
            .await
            .unwrap(),
        0
    );
    assert_eq!(scene.row("a").await.org_id, "9");
}

async fn two_at_once_never_do_a_row_twice(scene: UpdaterFixture) {
    let names: Vec<String> = (0..200).map(|n| format!("c{n:03}")).collect();
    let due = |name: &String| arrival(name, TenantChange::NotFound(at(0)), None);
    scene.arrive(names.iter().map(due).collect()).await;
    for name in &names {
        scene.script.answer(name, FakeTenantLookup::found("1"));
    }
    scene.later(RETRY_AFTER + 1);
    let (one, other) = tokio::join!(
        scene.run(LookupJob::TenantlessClient),
        scene.run(LookupJob::TenantlessClient)
    );
    assert_eq!(one.found + other.found, 200);
    let mut asked = scene.asked();
    asked.sort();
    assert_eq!(asked, names);
}

async fn a_mass_loss_is_not_believed_unless_forced(scene: UpdaterFixture) {
    let names: Vec<String> = (0..60).map(|n| format!("c{n:03}")).collect();
    let due = |name: &String| arrival(name, TenantChange::Found(tenant("1")), Some(at(0)));
    scene.arrive(names.iter().map(due).collect()).await;
    for name in &names {
        scene.script.answer(name, TenantLookupOutcome::NotFound);
    }
    scene.later(STALE_AFTER + 1);
    let summary = scene.run(LookupJob::InventoryRefresh).await;
    assert_eq!(summary.ended, StopReason::MassLoss);
    assert!(summary.is_failure());
    for name in &names {
        assert_eq!(scene.row(name).await.org_id, "1", "no tenant is lost");
    }
    scene.later(1);
    let forced = RunOptions {
        limit: None,
        force: true,
    };
    let updater = scene.updater();
    let summary = updater
        .run(LookupJob::InventoryRefresh, forced, &|_| {})
        .await
        .unwrap();
    assert_eq!(summary.not_found, 60);
}

async fn no_answers_end_a_run_early(scene: UpdaterFixture) {
    let due = |n: i32| {
        let name = format!("c{n:04}");
        arrival(&name, TenantChange::NotFound(at(0)), None)
    };
    for from in [0, 1000, 2000] {
        scene.arrive((from..from + 1000).map(due).collect()).await;
    }
    scene.later(RETRY_AFTER + 1);
    let summary = scene.run(LookupJob::TenantlessClient).await;
    assert_eq!(summary.ended, StopReason::LookupUnavailable);
    assert_eq!(summary.unavailable, 2000, "one chunk, and no more");
    // Whom nobody was asked about is as due as before.
    scene.later(1);
    let due = scene.updater().due(LookupJob::TenantlessClient);
    let now = *scene.clock.0.lock();
    assert_eq!(scene.store().count_due(due, now).await.unwrap(), 3000);
}

async fn who_has_no_answer_is_asked_about_once_a_run(scene: UpdaterFixture) {
    let names: Vec<String> = (0..4500).map(|n| format!("c{n:04}")).collect();
    let due = |name: &String| arrival(name, TenantChange::NotFound(at(0)), None);
    for part in names.chunks(900) {
        scene.arrive(part.iter().map(due).collect()).await;
    }
    for (n, name) in names.iter().enumerate() {
        if n % 5 != 0 {
            scene.script.answer(name, FakeTenantLookup::found("1"));
        }
    }
    scene.later(RETRY_AFTER + 1);
    let summary = scene.run(LookupJob::TenantlessClient).await;
    assert_eq!((summary.found, summary.unavailable), (3600, 900));
    assert_eq!(summary.ended, StopReason::Done);
    let mut asked = scene.asked();
    asked.sort();
    assert_eq!(asked, names);
    // The next run asks about those again, and about nobody else.
    scene.later(1);
    assert_eq!(
        scene.run(LookupJob::TenantlessClient).await.unavailable,
        900
    );
}
