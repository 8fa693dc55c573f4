//! Claims rows that are due for a tenant lookup, saves lookup results, and counts connections.

use const_format::concatcp;
use sqlx::{PgPool, Row as _};
use time::OffsetDateTime;

use super::row::{self, CLAIMED_CONNECTION_COLUMNS};
use domain::{ClientId, OrgId, Tenant, Timestamp};
use store::{ClaimedConnection, LookupOutcome, LookupReason, LookupResult, OrgCount};
use store::{StoreError, TenantlessClient, TenantlessCounts};

const UNCLAIMED_CONDITION: &str =
    " AND (lookup_claimed_until IS NULL OR lookup_claimed_until < $2)";
const INVENTORY_REFRESH_CONDITION: &str = concatcp!(
    "org_id <> '' AND inventory_eligible AND stale_timestamp < $1",
    UNCLAIMED_CONDITION
);
const MISSING_TENANT_CONDITION: &str = concatcp!(
    "org_id = '' AND tenant_lookup_timestamp < $1 \
     AND COALESCE(tenant_lookup_failure_count, 0) < $3",
    UNCLAIMED_CONDITION
);

pub(super) async fn claim_for_lookup(
    pool: &PgPool,
    reason: LookupReason,
    limit: u32,
    claims_ended_before: Timestamp,
    claim_until: Timestamp,
) -> Result<Vec<ClaimedConnection>, StoreError> {
    // `SKIP LOCKED` skips rows that another job or a batch has locked, so a claim never waits for a
    // lock.
    //
    // `ORDER BY` contains only the indexed column. If `client_id` were a second column, PostgreSQL
    // would sort all due rows for each claim.
    //
    // The code binds the same five parameters to both statements. The inventory refresh does not
    // need `$3`, so the code binds 0. The condition `$3 = 0` is always true. Its only purpose is
    // to use the parameter.
    const CLAIM_SQL_START: &str = "UPDATE connections SET lookup_claimed_until = $5 \
         WHERE client_id IN (SELECT client_id FROM connections WHERE ";
    const CLAIM_FOR_INVENTORY_REFRESH: &str = concatcp!(
        CLAIM_SQL_START,
        INVENTORY_REFRESH_CONDITION,
        " AND $3 = 0 ORDER BY stale_timestamp LIMIT $4 FOR UPDATE SKIP LOCKED) \
         RETURNING stale_timestamp AS sort_key, ",
        CLAIMED_CONNECTION_COLUMNS
    );
    const CLAIM_FOR_MISSING_TENANT: &str = concatcp!(
        CLAIM_SQL_START,
        MISSING_TENANT_CONDITION,
        " ORDER BY tenant_lookup_timestamp LIMIT $4 FOR UPDATE SKIP LOCKED) \
         RETURNING tenant_lookup_timestamp AS sort_key, ",
        CLAIMED_CONNECTION_COLUMNS
    );
    let (sql, before, max_attempts) = match reason {
        LookupReason::InventoryRefresh { reported_before } => {
            (CLAIM_FOR_INVENTORY_REFRESH, reported_before, 0)
        }
        LookupReason::MissingTenant {
            looked_up_before,
            max_attempts,
        } => (CLAIM_FOR_MISSING_TENANT, looked_up_before, max_attempts),
    };
    let rows = sqlx::query(sql)
        .bind(row::to_sql(before))
        .bind(row::to_sql(claims_ended_before))
        .bind(i32::try_from(max_attempts).unwrap_or(i32::MAX))
        .bind(i64::from(limit))
        .bind(row::to_sql(claim_until))
        .fetch_all(pool)
        .await?;
    let mut claimed_rows = Vec::with_capacity(rows.len());
    for row in &rows {
        claimed_rows.push((
            row::timestamp(row, "sort_key")?,
            row::claimed_connection(row)?,
        ));
    }
    // Sorts the rows, because `RETURNING` does not return them in the order of the subquery.
    claimed_rows.sort_by(|a, b| (a.0, &a.1.client_id).cmp(&(b.0, &b.1.client_id)));
    Ok(claimed_rows.into_iter().map(|(_, row)| row).collect())
}

pub(super) async fn count_due_rows(
    pool: &PgPool,
    reason: LookupReason,
    now: Timestamp,
) -> Result<u64, StoreError> {
    const COUNT_SQL_START: &str = "SELECT count(*) FROM connections WHERE ";
    let count: i64 = match reason {
        LookupReason::InventoryRefresh { reported_before } => {
            sqlx::query_scalar(concatcp!(COUNT_SQL_START, INVENTORY_REFRESH_CONDITION))
                .bind(row::to_sql(reported_before))
                .bind(row::to_sql(now))
        }
        LookupReason::MissingTenant {
            looked_up_before,
            max_attempts,
        } => sqlx::query_scalar(concatcp!(COUNT_SQL_START, MISSING_TENANT_CONDITION))
            .bind(row::to_sql(looked_up_before))
            .bind(row::to_sql(now))
            .bind(i32::try_from(max_attempts).unwrap_or(i32::MAX)),
    }
    .fetch_one(pool)
    .await?;
    Ok(u64::try_from(count).unwrap_or(0))
}

pub(super) async fn save_lookup_results(
    pool: &PgPool,
    results: &[LookupResult],
    now: Timestamp,
) -> Result<u64, StoreError> {
    // The statement locks the rows in the order of their client ids. Batches use the same order,
    // which prevents deadlocks.
    let mut sorted_results: Vec<&LookupResult> = results.iter().collect();
    sorted_results.sort_by(|a, b| a.client_id.cmp(&b.client_id));
    let mut columns = ResultColumns::default();
    for result in sorted_results {
        columns.push(result);
    }
    let rows = sqlx::query(
        "UPDATE connections AS c SET
                org_id = CASE WHEN r.outcome = 'unavailable' THEN c.org_id ELSE r.org_id END,
                account = CASE WHEN r.outcome = 'unavailable' THEN c.account ELSE r.account END,
                tenant_lookup_timestamp = CASE r.outcome WHEN 'found' THEN NULL
                    WHEN 'not_found' THEN $8 ELSE c.tenant_lookup_timestamp END,
                tenant_lookup_failure_count = CASE r.outcome WHEN 'found' THEN 0
                    WHEN 'not_found' THEN COALESCE(c.tenant_lookup_failure_count, 0) + 1
                    ELSE c.tenant_lookup_failure_count END,
                stale_timestamp = COALESCE(r.reported_to_inventory_at, c.stale_timestamp),
                inventory_eligible = c.inventory_eligible AND r.inventory_eligible,
                lookup_claimed_until = CASE WHEN r.outcome = 'unavailable' THEN $8
                    ELSE c.lookup_claimed_until END,
                updated_at = CASE WHEN r.outcome = 'unavailable' THEN c.updated_at ELSE $8 END
           FROM UNNEST($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[],
                $6::timestamptz[], $7::bool[])
             AS r (client_id, row_version, outcome, org_id, account, reported_to_inventory_at,
                inventory_eligible)
          WHERE c.client_id = r.client_id AND c.updated_at = r.row_version
         RETURNING r.outcome",
    )
    .bind(&columns.client_ids)
    .bind(&columns.row_versions)
    .bind(&columns.outcomes)
    .bind(&columns.org_ids)
    .bind(&columns.accounts)
    .bind(&columns.inventory_report_times)
    .bind(&columns.inventory_eligibilities)
    .bind(row::to_sql(now))
    .fetch_all(pool)
    .await?;
    let mut changed_rows = 0;
    for row in &rows {
        let outcome: String = row.try_get("outcome")?;
        changed_rows += u64::from(outcome != "unavailable");
    }
    Ok(changed_rows)
}

/// SQL parameters with the values of many lookup results. Each field is the array of one column.
#[derive(Default)]
struct ResultColumns<'a> {
    client_ids: Vec<&'a str>,
    row_versions: Vec<OffsetDateTime>,
    outcomes: Vec<&'static str>,
    org_ids: Vec<&'a str>,
    accounts: Vec<&'a str>,
    inventory_report_times: Vec<Option<OffsetDateTime>>,
    inventory_eligibilities: Vec<bool>,
}

impl<'a> ResultColumns<'a> {
    fn push(&mut self, result: &'a LookupResult) {
        self.client_ids.push(result.client_id.as_str());
        self.row_versions.push(row::to_sql(result.row_version));
        let (outcome, org_id, account, reported_at, eligible) = match &result.outcome {
            LookupOutcome::Found {
                tenant,
                reported_to_inventory_at,
                inventory_eligible,
            } => (
                "found",
                tenant.org_id.as_str(),
                tenant.account.as_str(),
                reported_to_inventory_at.map(row::to_sql),
                *inventory_eligible,
            ),
            LookupOutcome::NotFound => ("not_found", "", "", None, true),
            LookupOutcome::Unavailable => ("unavailable", "", "", None, true),
        };
        self.outcomes.push(outcome);
        self.org_ids.push(org_id);
        self.accounts.push(account);
        self.inventory_report_times.push(reported_at);
        self.inventory_eligibilities.push(eligible);
    }
}

pub(super) async fn restore_tenants(
    pool: &PgPool,
    clients: &[(ClientId, Tenant)],
    now: Timestamp,
) -> Result<u64, StoreError> {
    // The statement locks the rows in the order of their client ids. Batches use the same order,
    // which prevents deadlocks.
    let mut sorted_clients: Vec<&(ClientId, Tenant)> = clients.iter().collect();
    sorted_clients.sort_by(|a, b| a.0.cmp(&b.0));
    let client_ids: Vec<&str> = sorted_clients
        .iter()
        .map(|(client, _)| client.as_str())
        .collect();
    let org_ids: Vec<&str> = sorted_clients
        .iter()
        .map(|(_, t)| t.org_id.as_str())
        .collect();
    let accounts: Vec<&str> = sorted_clients
        .iter()
        .map(|(_, t)| t.account.as_str())
        .collect();
    let result = sqlx::query(
        "UPDATE connections AS c SET org_id = t.org_id, account = t.account,
                tenant_lookup_timestamp = NULL, updated_at = $4
           FROM UNNEST($1::text[], $2::text[], $3::text[]) AS t (client_id, org_id, account)
          WHERE c.client_id = t.client_id AND c.org_id = ''",
    )
    .bind(&client_ids)
    .bind(&org_ids)
    .bind(&accounts)
    .bind(row::to_sql(now))
    .execute(pool)
    .await?;
    Ok(result.rows_affected())
}

pub(super) async fn count_tenantless_clients(
    pool: &PgPool,
    max_attempts: u32,
) -> Result<TenantlessCounts, StoreError> {
    let row = sqlx::query(
        "SELECT count(*) FILTER (WHERE COALESCE(tenant_lookup_failure_count, 0) < $1) AS pending,
                count(*) FILTER (WHERE COALESCE(tenant_lookup_failure_count, 0) >= $1) AS exhausted,
                min(tenant_lookup_timestamp)
                    FILTER (WHERE COALESCE(tenant_lookup_failure_count, 0) < $1) AS oldest_lookup_at
           FROM connections WHERE org_id = ''",
    )
    .bind(i32::try_from(max_attempts).unwrap_or(i32::MAX))
    .fetch_one(pool)
    .await?;
    let read_count = |column| -> Result<u64, StoreError> {
        Ok(u64::try_from(row.try_get::<i64, _>(column)?).unwrap_or(0))
    };
    Ok(TenantlessCounts {
        pending_clients: read_count("pending")?,
        exhausted_clients: read_count("exhausted")?,
        oldest_lookup_at: row::optional_timestamp(&row, "oldest_lookup_at")?,
    })
}

pub(super) async fn list_tenantless_clients(
    pool: &PgPool,
    limit: u32,
) -> Result<Vec<TenantlessClient>, StoreError> {
    let rows = sqlx::query(
        "SELECT client_id, tenant_lookup_timestamp, online_received_at,
                COALESCE(tenant_lookup_failure_count, 0) AS tenant_lookup_failure_count
           FROM connections WHERE org_id = '' ORDER BY tenant_lookup_timestamp, client_id LIMIT $1",
    )
    .bind(i64::from(limit))
    .fetch_all(pool)
    .await?;
    let tenantless_client = |row| -> Result<TenantlessClient, StoreError> {
        Ok(TenantlessClient {
            client_id: row::client_id(row)?,
            last_lookup_at: row::optional_timestamp(row, "tenant_lookup_timestamp")?,
            failed_lookups: u32::try_from(row.try_get::<i32, _>("tenant_lookup_failure_count")?)
                .unwrap_or(0),
            online_received_at: row::timestamp(row, "online_received_at")?,
        })
    };
    rows.iter().map(tenantless_client).collect()
}

pub(super) async fn reset_tenantless_clients(
    pool: &PgPool,
    clients: Option<&[ClientId]>,
) -> Result<u64, StoreError> {
    let result = sqlx::query(
        "UPDATE connections SET tenant_lookup_timestamp = 'epoch', tenant_lookup_failure_count = 0,
                lookup_claimed_until = NULL
          WHERE org_id = '' AND ($1::text[] IS NULL OR client_id = ANY($1))",
    )
    .bind(clients.map(row::client_id_texts))
    .execute(pool)
    .await?;
    Ok(result.rows_affected())
}

pub(super) async fn delete_tenantless_clients(
    pool: &PgPool,
    clients: &[ClientId],
) -> Result<u64, StoreError> {
    let result = sqlx::query(
        "DELETE FROM connections
          WHERE org_id = '' AND client_id = ANY($1)",
    )
    .bind(row::client_id_texts(clients))
    .execute(pool)
    .await?;
    Ok(result.rows_affected())
}

pub(super) async fn count_connections_with_tenant(pool: &PgPool) -> Result<u64, StoreError> {
    let sql = "SELECT COALESCE(sum(delta), 0)::bigint FROM org_connection_deltas";
    let count: i64 = sqlx::query_scalar(sql).fetch_one(pool).await?;
    Ok(u64::try_from(count).unwrap_or(0))
}

pub(super) async fn count_by_org(
    pool: &PgPool,
    limit: u32,
) -> Result<(Vec<OrgCount>, u64), StoreError> {
    let mut snapshot = pool
        .begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        .await?;
    let rows = sqlx::query(
        "SELECT org_id, count(*) AS connections FROM connections WHERE org_id <> ''
          GROUP BY org_id ORDER BY connections DESC, org_id LIMIT $1",
    )
    .bind(i64::from(limit))
    .fetch_all(&mut *snapshot)
    .await?;
    let tenantless_count: i64 =
        sqlx::query_scalar("SELECT count(*) FROM connections WHERE org_id = ''")
            .fetch_one(&mut *snapshot)
            .await?;
    snapshot.commit().await?;
    let mut counts = Vec::with_capacity(rows.len());
    for row in &rows {
        let org_id: String = row.try_get("org_id")?;
        let count: i64 = row.try_get("connections")?;
        if let Ok(org_id) = OrgId::new(&org_id) {
            counts.push((org_id, u64::try_from(count).unwrap_or(0)));
        }
    }
    Ok((counts, u64::try_from(tenantless_count).unwrap_or(0)))
}
