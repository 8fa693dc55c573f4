//! Writes the tenants of many connections with one statement.
//!
//! The statements lock the rows in the order of their client ids. Batches use the same order, which
//! prevents deadlocks.

use crate::driver::{self, set_based, timestamptz};
use crate::guarded_pool::GuardedPool;
use crate::transaction::column;
use domain::{ClientId, Tenant, Timestamp};
use store::sql::{ColumnReader as _, LookupColumns};
use store::{LookupResult, Result};

store::statements! {
    SAVE_LOOKUP_RESULTS = "
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
               updated_at = CASE WHEN r.outcome = 'unavailable' THEN c.updated_at ELSE $8 END
          FROM UNNEST($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[],
               $6::timestamptz[], $7::bool[], $9::bool[])
            AS r (client_id, row_version, outcome, org_id, account, reported_to_inventory_at,
               inventory_eligible, has_failed)
         WHERE c.client_id = r.client_id AND c.updated_at = r.row_version
        RETURNING r.outcome";

    RESTORE_TENANTS = "
        UPDATE connections AS c SET org_id = t.org_id, account = t.account,
               tenant_lookup_timestamp = NULL, updated_at = $4
          FROM UNNEST($1::text[], $2::text[], $3::text[]) AS t (client_id, org_id, account)
         WHERE c.client_id = t.client_id AND c.org_id = ''";
}

pub(crate) async fn save_lookup_results(
    pool: &GuardedPool,
    results: &[LookupResult],
    now: Timestamp,
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
        .bind(column(&columns, |c| c.has_failed));
    let rows = driver::fetch_all(pool, query).await?;
    rows.iter().try_fold(0, |changed_rows, row| {
        Ok(changed_rows + u64::from(row.text("outcome")? != "unavailable"))
    })
}

pub(crate) async fn restore_tenants(
    pool: &GuardedPool,
    clients: &[(ClientId, Tenant)],
    now: Timestamp,
) -> Result<u64> {
    let mut clients: Vec<&(ClientId, Tenant)> = clients.iter().collect();
    clients.sort_by(|a, b| a.0.cmp(&b.0));
    let query = set_based(RESTORE_TENANTS)
        .bind(column(&clients, |(client, _)| client.as_str()))
        .bind(column(&clients, |(_, tenant)| tenant.org_id.as_str()))
        .bind(column(&clients, |(_, tenant)| tenant.account.as_str()))
        .bind(timestamptz(now));
    driver::execute(pool, query).await
}
