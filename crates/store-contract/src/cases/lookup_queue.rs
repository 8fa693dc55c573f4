//! Claims of rows that are due for a tenant lookup, lookup results and tenantless clients.

use std::ops::ControlFlow;

use domain::{ClientId, Timestamp};
use store::{
    ClaimedConnection, ClientDetails, ConnectionUpsert, LookupOutcome, LookupReason, LookupResult,
    TenantlessCounts,
};
use store::{LookupReason::InventoryRefresh, TenantChange};
use test_support::stores::TestStore;

use crate::fixtures::{
    client, find_for_org_1, load_client_state, record_offline, record_online, tenant, timestamp_at,
    upsert, upsert_for_org,
};

fn missing_tenant(looked_up_before: i64) -> LookupReason {
    LookupReason::MissingTenant {
        looked_up_before: timestamp_at(looked_up_before),
        max_attempts: 2,
    }
}

/// Returns the upsert of a client whose tenant was not found at this time.
fn tenantless(client_id: &str, looked_up_at: i64) -> ConnectionUpsert {
    let not_found = TenantChange::NotFound(timestamp_at(looked_up_at));
    upsert(client_id, not_found)
}

/// Claims all due rows at the second `now`, for 10 seconds.
async fn claim(store: &TestStore, reason: LookupReason, now: i64) -> Vec<ClaimedConnection> {
    store
        .lookup_queue
        .claim_for_lookup(reason, 100, timestamp_at(now), timestamp_at(now + 10))
        .await
        .unwrap()
}

fn names(rows: &[ClaimedConnection]) -> Vec<&str> {
    rows.iter().map(|row| row.client_id.as_str()).collect()
}

fn result(row: &ClaimedConnection, outcome: LookupOutcome) -> LookupResult {
    LookupResult {
        client_id: row.client_id.clone(),
        row_version: row.row_version,
        outcome,
    }
}

async fn save(store: &TestStore, results: &[LookupResult], second: i64) -> u64 {
    store
        .lookup_queue
        .save_lookup_results(results, timestamp_at(second))
        .await
        .unwrap()
}

pub async fn missing_tenants_are_claimed_oldest_lookup_first(store: &TestStore) {
    let upserts = vec![
        tenantless("c", 3),
        tenantless("b", 2),
        tenantless("a", 3),
        tenantless("recent", 20),
        upsert("pending", TenantChange::PendingLookup),
        upsert_for_org("with-tenant", "1"),
    ];
    record_online(store, upserts.clone()).await;
    let due = store
        .lookup_queue
        .count_due_rows(missing_tenant(10), timestamp_at(30));
    assert_eq!(due.await.unwrap(), 4);
    let claimed = claim(store, missing_tenant(10), 30).await;
    assert_eq!(names(&claimed), ["pending", "b", "a", "c"]);
    assert_eq!(claimed[1].tenant, None);
}

pub async fn details_of_a_claimed_client_have_the_version_of_the_claim(store: &TestStore) {
    let upserts = vec![tenantless("a", 1), tenantless("b", 1), tenantless("c", 1)];
    record_online(store, upserts.clone()).await;
    let claimed = claim(store, missing_tenant(10), 30).await;
    let clients = ["a", "b", "missing"].map(client);
    let mut details = Vec::new();
    let mut visit = |client_details: ClientDetails| {
        details.push(client_details);
        ControlFlow::Continue(())
    };
    let visited = store
        .lookup_queue
        .visit_client_details(&clients, &mut visit);
    visited.await.unwrap();
    details.sort_by(|a, b| a.client_id.cmp(&b.client_id));
    assert_eq!(details.len(), 2);
    for ((details, upsert), claimed) in details.iter().zip(&upserts).zip(&claimed) {
        assert_eq!(details.client_id, claimed.client_id);
        assert_eq!(details.row_version, claimed.row_version);
        assert_eq!(details.dialect, upsert.dialect);
        assert_eq!(details.kind, upsert.kind);
        assert_eq!(details.info, upsert.info);
    }
    let mut visited_rows = 0;
    let mut visit = |_| {
        visited_rows += 1;
        ControlFlow::Break(())
    };
    let visited = store
        .lookup_queue
        .visit_client_details(&clients, &mut visit);
    visited.await.unwrap();
    assert_eq!(visited_rows, 1);
}

pub async fn claimed_row_is_not_claimed_again_until_its_claim_ends(store: &TestStore) {
    record_online(store, vec![tenantless("a", 1), tenantless("b", 1)]).await;
    let first = store
        .lookup_queue
        .claim_for_lookup(missing_tenant(10), 1, timestamp_at(30), timestamp_at(40))
        .await
        .unwrap();
    assert_eq!(first.len(), 1);
    let second = claim(store, missing_tenant(10), 30).await;
    assert_eq!(second.len(), 1);
    assert_ne!(names(&first), names(&second));
    assert_eq!(names(&claim(store, missing_tenant(10), 39).await), [""; 0]);
    let due = store
        .lookup_queue
        .count_due_rows(missing_tenant(10), timestamp_at(39));
    assert_eq!(due.await.unwrap(), 0);
    let claimed = claim(store, missing_tenant(10), 41).await;
    assert_eq!(names(&claimed), ["a", "b"]);
    // An unavailable lookup ends the claim, and leaves the row due.
    let unavailable = [result(&claimed[0], LookupOutcome::Unavailable)];
    assert_eq!(save(store, &unavailable, 42).await, 0);
    assert_eq!(names(&claim(store, missing_tenant(10), 43).await), ["a"]);
}

pub async fn every_lookup_result_ends_the_claim(store: &TestStore) {
    let names_of_clients = ["found", "not-found", "unavailable"];
    let upserts = names_of_clients.map(|name| tenantless(name, 1));
    record_online(store, upserts.to_vec()).await;
    let claimed = claim(store, missing_tenant(10), 30).await;
    assert_eq!(names(&claimed), names_of_clients);
    let not_delivered = LookupOutcome::Found {
        tenant: tenant("1"),
        reported_to_inventory_at: None,
        inventory_eligible: true,
        report_failed: true,
    };
    let results = [
        result(&claimed[0], not_delivered),
        result(&claimed[1], LookupOutcome::NotFound),
        result(&claimed[2], LookupOutcome::Unavailable),
    ];
    assert_eq!(save(store, &results, 31).await, 2);
    // The claims would have ended at second 40 by themselves.
    let refresh = InventoryRefresh {
        reported_before: timestamp_at(10),
    };
    for (reason, due_rows) in [(missing_tenant(32), 2), (refresh, 1)] {
        let due = store.lookup_queue.count_due_rows(reason, timestamp_at(33));
        assert_eq!(due.await.unwrap(), due_rows, "{reason:?}");
    }
    assert_eq!(names(&claim(store, refresh, 33).await), ["found"]);
    let claimed = claim(store, missing_tenant(32), 33).await;
    assert_eq!(names(&claimed), ["not-found"]);
    // A run does not claim a row again whose claim has ended during the run.
    assert_eq!(save(store, &results[1..], 34).await, 0);
    let claimed = claim(store, missing_tenant(40), 31).await;
    assert_eq!(names(&claimed), [""; 0]);
}

pub async fn released_claims_end_and_claims_of_other_jobs_stay(store: &TestStore) {
    record_online(store, vec![tenantless("a", 1), tenantless("b", 1)]).await;
    let claimed = claim(store, missing_tenant(10), 30).await;
    assert_eq!(names(&claimed), ["a", "b"]);
    let release = async |name: &str, claim_end| {
        let (client, end) = ([client(name)], timestamp_at(claim_end));
        let released = store
            .lookup_queue
            .release_claims(&client, end, timestamp_at(31));
        released.await.unwrap()
    };
    assert_eq!(release("a", 39).await, 0, "the claim of another job");
    assert_eq!(release("a", 40).await, 1);
    assert_eq!(names(&claim(store, missing_tenant(10), 32).await), ["a"]);
}

pub async fn rows_with_a_failed_lookup_are_claimed_last(store: &TestStore) {
    let names_of_clients = ["a", "b", "c"];
    let mut upserts = names_of_clients.map(|name| tenantless(name, 1)).to_vec();
    upserts.push(tenantless("recent", 5));
    record_online(store, upserts).await;
    let claimed = claim(store, missing_tenant(2), 30).await;
    assert_eq!(names(&claimed), names_of_clients);
    // Client b fails first, then clients a and c.
    for (index, second) in [(1, 31), (0, 32), (2, 32)] {
        let failed = [result(&claimed[index], LookupOutcome::Unavailable)];
        assert_eq!(save(store, &failed, second).await, 0);
    }
    let due = store
        .lookup_queue
        .count_due_rows(missing_tenant(10), timestamp_at(40));
    assert_eq!(due.await.unwrap(), 4);
    let claim_one = async |limit| {
        let (now, claim_until) = (timestamp_at(40), timestamp_at(50));
        let queue = &store.lookup_queue;
        let claimed = queue.claim_for_lookup(missing_tenant(10), limit, now, claim_until);
        claimed.await.unwrap()
    };
    assert_eq!(names(&claim_one(10).await), ["recent"]);
    let claimed = claim_one(1).await;
    assert_eq!(names(&claimed), ["b"]);
    assert_eq!(names(&claim_one(10).await), ["a", "c"]);
    // A result without a failure moves the client to the other clients.
    let not_found = [result(&claimed[0], LookupOutcome::NotFound)];
    assert_eq!(save(store, &not_found, 41).await, 1);
    let claimed = claim(store, missing_tenant(60), 61).await;
    assert_eq!(names(&claimed), ["recent", "b"]);
}

pub async fn hosts_with_a_failed_report_are_claimed_last(store: &TestStore) {
    let reported = |name: &str, reported_at| {
        let mut upsert = upsert_for_org(name, "1");
        upsert.reported_to_inventory_at = Some(timestamp_at(reported_at));
        upsert
    };
    record_online(store, vec![reported("a", 1), reported("b", 2)]).await;
    let refresh = InventoryRefresh {
        reported_before: timestamp_at(10),
    };
    let claimed = claim(store, refresh, 30).await;
    assert_eq!(names(&claimed), ["a", "b"]);
    let not_delivered = LookupOutcome::Found {
        tenant: tenant("1"),
        reported_to_inventory_at: None,
        inventory_eligible: true,
        report_failed: true,
    };
    assert_eq!(
        save(store, &[result(&claimed[0], not_delivered)], 31).await,
        1
    );
    assert_eq!(names(&claim(store, refresh, 41).await), ["b"]);
    assert_eq!(names(&claim(store, refresh, 41).await), ["a"]);
}

pub async fn only_hosts_with_an_old_report_are_claimed_for_the_inventory_refresh(
    store: &TestStore,
) {
    let reported = |name: &str, reported_at: Option<i64>| {
        let mut upsert = upsert_for_org(name, "1");
        upsert.reported_to_inventory_at = reported_at.map(timestamp_at);
        upsert
    };
    let mut not_eligible = reported("not-eligible", Some(1));
    not_eligible.inventory_eligible = false;
    let upserts = vec![
        reported("old", Some(5)),
        reported("never", None),
        reported("recent", Some(20)),
        not_eligible,
        tenantless("tenantless", 1),
    ];
    record_online(store, upserts).await;
    let reason = InventoryRefresh {
        reported_before: timestamp_at(10),
    };
    let due = store.lookup_queue.count_due_rows(reason, timestamp_at(30));
    assert_eq!(due.await.unwrap(), 2);
    let claimed = claim(store, reason, 30).await;
    assert_eq!(names(&claimed), ["never", "old"]);
    assert_eq!(claimed[0].tenant, Some(tenant("1")));
    let found =
        |reported_to_inventory_at: Option<Timestamp>, inventory_eligible| LookupOutcome::Found {
            tenant: tenant("1"),
            reported_to_inventory_at,
            inventory_eligible,
            report_failed: false,
        };
    let results = [
        result(&claimed[0], found(Some(timestamp_at(31)), true)),
        result(&claimed[1], found(None, false)),
    ];
    assert_eq!(save(store, &results, 31).await, 2);
    assert_eq!(names(&claim(store, reason, 50).await), [""; 0]);
}

pub async fn lookup_result_for_a_changed_row_is_discarded(store: &TestStore) {
    record_online(store, vec![tenantless("a", 1), tenantless("b", 1)]).await;
    let claimed = claim(store, missing_tenant(10), 30).await;
    // Writes the row again, so its version changes. `record_online` always writes at second 1.
    store
        .execute("UPDATE connections SET updated_at = online_received_at WHERE client_id = 'b'")
        .await;
    let results: Vec<_> = claimed
        .iter()
        .map(|row| {
            let outcome = LookupOutcome::Found {
                tenant: tenant("1"),
                reported_to_inventory_at: None,
                inventory_eligible: true,
                report_failed: false,
            };
            result(row, outcome)
        })
        .collect();
    assert_eq!(save(store, &results, 31).await, 1);
    assert!(find_for_org_1(store, "a").await.is_some());
    assert_eq!(find_for_org_1(store, "b").await, None);
}

pub async fn tenantless_clients_are_counted_listed_reset_and_deleted(store: &TestStore) {
    let upserts = vec![
        tenantless("c", 5),
        tenantless("b", 5),
        tenantless("a", 7),
        upsert_for_org("with-tenant", "1"),
    ];
    record_online(store, upserts).await;
    let claimed = claim(store, missing_tenant(10), 30).await;
    let not_found = |row| result(row, LookupOutcome::NotFound);
    // Client c reaches the maximum of two failed lookups.
    let c = claimed.iter().find(|row| row.client_id == client("c"));
    assert_eq!(save(store, &[not_found(c.unwrap())], 31).await, 1);
    let claimed = claim(store, missing_tenant(60), 61).await;
    let c = claimed.iter().find(|row| row.client_id == client("c"));
    assert_eq!(save(store, &[not_found(c.unwrap())], 62).await, 1);
    let counts = store.lookup_queue.count_tenantless_clients(2).await;
    let expected_counts = TenantlessCounts {
        pending_clients: 2,
        exhausted_clients: 1,
        oldest_lookup_at: Some(timestamp_at(5)),
    };
    assert_eq!(counts.unwrap(), expected_counts);
    let list = async |limit| {
        let listed = store.lookup_queue.list_tenantless_clients(limit);
        let listed = listed.await.unwrap();
        let clients = listed
            .iter()
            .map(|row| (row.client_id.to_string(), row.failed_lookups));
        clients.collect::<Vec<_>>()
    };
    let row = |name: &str, failed_lookups| (name.to_owned(), failed_lookups);
    assert_eq!(list(9).await, [row("b", 0), row("a", 0), row("c", 2)]);
    assert_eq!(list(1).await, [row("b", 0)]);
    let reset = async |clients: &[ClientId]| {
        let reset = store.lookup_queue.reset_tenantless_clients(clients);
        reset.await.unwrap()
    };
    let reset_after = async |after_client: Option<&ClientId>, limit| {
        let queue = &store.lookup_queue;
        let reset = queue.reset_tenantless_clients_after(after_client, limit);
        reset.await.unwrap()
    };
    let selected = [client("c"), client("with-tenant"), client("unknown")];
    assert_eq!(reset(&selected).await, 1);
    assert_eq!(list(9).await, [row("c", 0), row("b", 0), row("a", 0)]);
    assert_eq!(reset(&[]).await, 0);
    assert_eq!(reset_after(None, 2).await, [client("a"), client("b")]);
    assert_eq!(reset_after(Some(&client("b")), 2).await, [client("c")]);
    assert!(reset_after(Some(&client("c")), 2).await.is_empty());
    let claimed = claim(store, missing_tenant(2), 63).await;
    assert_eq!(names(&claimed), ["a", "b", "c"], "a reset ends the claims");
    let deleted = store
        .lookup_queue
        .delete_tenantless_clients(&selected)
        .await;
    assert_eq!(deleted.unwrap(), 1);
    assert_eq!(list(9).await, [row("a", 0), row("b", 0)]);
    assert!(find_for_org_1(store, "with-tenant").await.is_some());
}

pub async fn tenants_are_restored_only_for_connected_tenantless_clients(store: &TestStore) {
    let upserts = vec![
        tenantless("a", 1),
        upsert_for_org("b", "1"),
        tenantless("disconnected", 1),
    ];
    record_online(store, upserts).await;
    record_offline(store, &["disconnected"], 2).await;
    let tenants = ["b", "a", "disconnected", "unknown"].map(|name| (client(name), tenant("2")));
    let restored = store.presence.restore_tenants(&tenants, timestamp_at(3));
    assert_eq!(restored.await.unwrap(), 1);
    let state = load_client_state(store, "a").await;
    assert_eq!(state.connection.unwrap().tenant, Some(tenant("2")));
    let state = load_client_state(store, "b").await;
    assert_eq!(state.connection.unwrap().tenant, Some(tenant("1")));
    let state = load_client_state(store, "disconnected").await;
    assert_eq!(state.disconnect.unwrap().tenant, None);
}
