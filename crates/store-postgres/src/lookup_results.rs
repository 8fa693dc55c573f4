//! Writes the tenants of many connections with one statement, which also writes the history and the
//! events of the connections whose organization changes.
//!
//! The statements lock the rows in the order of their client ids. Batches use the same order, which
//! prevents deadlocks.

use const_format::concatcp;

use crate::driver::{self, Row, set_based, timestamptz};
use crate::guarded_pool::GuardedPool;
use crate::transaction::column;
use domain::{ClientId, OfflineReason, OnlineCause, Tenant, Timestamp};
use store::sql::{ColumnReader as _, LookupColumns};
use store::{LookupResult, Result, Transition, latest_transition, log_transition};

/// Writes the history and the events of the rows in `changed`: an organization that loses a connection sees it
/// offline, and an organization that gains one sees it online. `now` and `writes_events` are in `parameters`.
const WRITE_TRANSITIONS: &str = "
        transitions AS (
            SELECT client_id, transition_count - (org_id <> '')::int AS number, 'offline' AS status,
                   CASE WHEN org_id = '' THEN 'tenant-lost' ELSE 'moved' END AS reason,
                   previous_org_id AS org_id, previous_account AS account,
                   json_build_object('reason', CASE WHEN org_id = '' THEN 'tenant-lost' ELSE 'moved' END,
                       'connected_for', GREATEST(0, floor(extract(epoch FROM now - previous_connected_since))::bigint),
                       'dispatchers', dispatchers) AS data
              FROM changed, parameters WHERE previous_org_id <> ''
            UNION ALL
            SELECT client_id, transition_count, 'online', 'tenant-found', org_id, account,
                   json_build_object('dispatchers', dispatchers, 'tags', tags, 'canonical_facts', canonical_facts,
                       'client_version', client_version, 'cause', 'tenant-found')
              FROM changed WHERE org_id <> ''),
        history AS (
            INSERT INTO presence_history (client_id, number, at, org_id, status, reason)
            SELECT client_id, number, now, org_id, status, reason FROM transitions, parameters
            ON CONFLICT (client_id, org_id, number) DO UPDATE SET at = excluded.at,
                   status = excluded.status, reason = excluded.reason),
        outbox AS (
            INSERT INTO event_outbox (at, type, org_id, account, client_id, data)
            SELECT now, 'connection.' || status, org_id, account, client_id, data::text
              FROM transitions, parameters WHERE writes_events ORDER BY client_id, number)";

/// Assignments that count the transitions of a row whose organization changes to `new_org`. `c` is the row.
macro_rules! count_transitions {
    ($new_org:expr, $now:expr) => {
        concatcp!(
            "transition_count = CASE WHEN c.org_id = ",
            $new_org,
            " THEN c.transition_count
                   ELSE ",
            latest_transition!("c."),
            " + (c.org_id <> '')::int + (",
            $new_org,
            " <> '')::int END,
               reconnects = CASE WHEN c.org_id = ",
            $new_org,
            " THEN c.reconnects ELSE 0 END,
               connected_since = CASE WHEN c.org_id = ",
            $new_org,
            " THEN c.connected_since
                   ELSE ",
            $now,
            " END"
        )
    };
}

/// Columns of an updated row, and the previous values of the columns that change.
const CHANGED_COLUMNS: &str =
    "c.client_id, c.org_id, COALESCE(c.account, '') AS account, c.transition_count,
                c.dispatchers, c.tags, c.canonical_facts, c.client_version,
                old.org_id AS previous_org_id, COALESCE(old.account, '') AS previous_account,
                COALESCE(old.connected_since, old.online_received_at) AS previous_connected_since";

store::statements! {
    SAVE_LOOKUP_RESULTS = concatcp!("
        WITH parameters AS (SELECT $8::timestamptz AS now, $10::bool AS writes_events),
        updated AS (
        UPDATE connections AS c SET
               org_id = CASE WHEN r.outcome = 'unavailable' THEN c.org_id ELSE r.org_id END,
               account = CASE WHEN r.outcome = 'unavailable' THEN c.account ELSE r.account END,
               tenant_lookup_timestamp = CASE r.outcome WHEN 'found' THEN NULL
                   WHEN 'not_found' THEN $8 ELSE c.tenant_lookup_timestamp END,
               tenant_lookup_failure_count = CASE r.outcome WHEN 'found' THEN 0
                   WHEN 'not_found' THEN COALESCE(c.tenant_lookup_failure_count, 0) + 1
                   ELSE c.tenant_lookup_failure_count END,
               stale_timestamp = COALESCE(r.reported_to_inventory_at, c.stale_timestamp),
               inventory_eligible = c.inventory_eligible AND r.inventory_eligible,
               lookup_claimed_until = $8,
               lookup_failed_at = CASE WHEN r.has_failed THEN $8 END,
               ", count_transitions!("CASE WHEN r.outcome = 'unavailable' THEN c.org_id ELSE r.org_id END", "$8"), ",
               updated_at = CASE WHEN r.outcome = 'unavailable' THEN c.updated_at ELSE $8 END
          FROM UNNEST($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[],
               $6::timestamptz[], $7::bool[], $9::bool[])
            AS r (client_id, row_version, outcome, org_id, account, reported_to_inventory_at,
               inventory_eligible, has_failed)
          JOIN connections AS old ON old.client_id = r.client_id AND old.updated_at = r.row_version
         WHERE c.client_id = r.client_id AND c.updated_at = r.row_version
        RETURNING r.outcome, ", CHANGED_COLUMNS, "),
        changed AS (SELECT * FROM updated WHERE org_id <> previous_org_id),",
        WRITE_TRANSITIONS, "
        SELECT outcome, client_id, org_id, previous_org_id FROM updated");

    RESTORE_TENANTS = concatcp!("
        WITH parameters AS (SELECT $4::timestamptz AS now, $5::bool AS writes_events),
        changed AS (
        UPDATE connections AS c SET org_id = t.org_id, account = t.account,
               tenant_lookup_timestamp = NULL, updated_at = $4,
               ", count_transitions!("t.org_id", "$4"), "
          FROM UNNEST($1::text[], $2::text[], $3::text[]) AS t (client_id, org_id, account)
          JOIN connections AS old ON old.client_id = t.client_id AND old.org_id = ''
         WHERE c.client_id = t.client_id AND c.org_id = ''
        RETURNING ", CHANGED_COLUMNS, "),",
        WRITE_TRANSITIONS, "
        SELECT client_id, org_id, previous_org_id FROM changed");
}

pub(crate) async fn save_lookup_results(
    pool: &GuardedPool,
    results: &[LookupResult],
    now: Timestamp,
    writes_events: bool,
) -> Result<u64> {
    let mut results: Vec<&LookupResult> = results.iter().collect();
    results.sort_by(|a, b| a.client_id.cmp(&b.client_id));
    let columns = column(&results, |result| LookupColumns::from(&result.outcome));
    let reported_times = column(&columns, |c| c.reported_to_inventory_at.map(timestamptz));
    let query = set_based(SAVE_LOOKUP_RESULTS)
        .bind(column(&results, |result| result.client_id.as_str()))
        .bind(column(&results, |result| timestamptz(result.row_version)))
        .bind(column(&columns, |c| c.outcome))
        .bind(column(&columns, |c| c.org_id))
        .bind(column(&columns, |c| c.account))
        .bind(reported_times)
        .bind(column(&columns, |c| c.inventory_eligible))
        .bind(timestamptz(now))
        .bind(column(&columns, |c| c.has_failed))
        .bind(writes_events);
    let rows = driver::fetch_all(pool, query).await?;
    log_changed_organizations(&rows)?;
    rows.iter().try_fold(0, |changed_rows, row| {
        Ok(changed_rows + u64::from(row.text("outcome")? != "unavailable"))
    })
}

pub(crate) async fn restore_tenants(
    pool: &GuardedPool,
    clients: &[(ClientId, Tenant)],
    now: Timestamp,
    writes_events: bool,
) -> Result<u64> {
    let mut clients: Vec<&(ClientId, Tenant)> = clients.iter().collect();
    clients.sort_by(|a, b| a.0.cmp(&b.0));
    let query = set_based(RESTORE_TENANTS)
        .bind(column(&clients, |(client, _)| client.as_str()))
        .bind(column(&clients, |(_, tenant)| tenant.org_id.as_str()))
        .bind(column(&clients, |(_, tenant)| tenant.account.as_str()))
        .bind(timestamptz(now))
        .bind(writes_events);
    let rows = driver::fetch_all(pool, query).await?;
    log_changed_organizations(&rows)?;
    Ok(rows.len() as u64)
}

/// Writes a log line for each transition of the rows.
fn log_changed_organizations(rows: &[Row]) -> Result<()> {
    for row in rows {
        let (lost, gained) = (row.text("previous_org_id")?, row.text("org_id")?);
        if lost == gained {
            continue;
        }
        let client_id = row.text("client_id")?;
        if !lost.is_empty() {
            let reason = if gained.is_empty() {
                OfflineReason::TenantLost
            } else {
                OfflineReason::Moved
            };
            log_transition(&client_id, &lost, Transition::Offline(reason));
        }
        if !gained.is_empty() {
            let found = Transition::Online(OnlineCause::TenantFound);
            log_transition(&client_id, &gained, found);
        }
    }
    Ok(())
}
