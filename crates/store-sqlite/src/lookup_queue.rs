//! Claims rows that are due for a tenant lookup, saves lookup results, and counts connections.

use const_format::concatcp;
use sqlx::{Row as _, SqlitePool};

use super::row::{self, CLAIMED_CONNECTION_COLUMNS};
use domain::{ClientId, OrgId, Tenant, Timestamp};
use store::{ClaimedConnection, LookupOutcome, LookupReason, LookupResult, OrgCount};
use store::{StoreError, TenantlessClient, TenantlessCounts};

const UNCLAIMED_CONDITION: &str =
    " AND (lookup_claimed_until IS NULL OR lookup_claimed_until < ?2)";
const INVENTORY_REFRESH_CONDITION: &str = concatcp!(
    "org_id <> '' AND inventory_eligible AND stale_timestamp < ?1",
    UNCLAIMED_CONDITION
);
const MISSING_TENANT_CONDITION: &str = concatcp!(
    "org_id = '' AND tenant_lookup_timestamp < ?1 AND tenant_lookup_failure_count < ?3",
    UNCLAIMED_CONDITION
);

pub(super) async fn claim_for_lookup(
    pool: &SqlitePool,
    reason: LookupReason,
    limit: u32,
    claims_ended_before: Timestamp,
    claim_until: Timestamp,
) -> Result<Vec<ClaimedConnection>, StoreError> {
    // `ORDER BY` contains only the indexed column. If `client_id` were a second column, SQLite
    // would sort all due rows for each claim.
    //
    // The code binds the same five parameters to both statements. The inventory refresh does not
    // need `?3`, so the code binds 0. The condition `?3 = 0` is always true. Its only purpose is
    // to use the parameter.
    const CLAIM_SQL_START: &str = "UPDATE connections SET lookup_claimed_until = ?5 \
         WHERE client_id IN (SELECT client_id FROM connections WHERE ";
    const CLAIM_FOR_INVENTORY_REFRESH: &str = concatcp!(
        CLAIM_SQL_START,
        INVENTORY_REFRESH_CONDITION,
        " AND ?3 = 0 ORDER BY stale_timestamp LIMIT ?4) \
         RETURNING stale_timestamp AS sort_key, ",
        CLAIMED_CONNECTION_COLUMNS
    );
    const CLAIM_FOR_MISSING_TENANT: &str = concatcp!(
        CLAIM_SQL_START,
        MISSING_TENANT_CONDITION,
        " ORDER BY tenant_lookup_timestamp LIMIT ?4) \
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
        .bind(before.as_microsecond())
        .bind(claims_ended_before.as_microsecond())
        .bind(max_attempts)
        .bind(limit)
        .bind(claim_until.as_microsecond())
        .fetch_all(pool)
        .await?;
    let mut claimed_rows = Vec::with_capacity(rows.len());
    for row in &rows {
        let sort_key: i64 = row.try_get("sort_key")?;
        claimed_rows.push((sort_key, row::claimed_connection(row)?));
    }
    // Sorts the rows, because `RETURNING` does not return them in the order of the subquery.
    claimed_rows.sort_by(|a, b| (a.0, &a.1.client_id).cmp(&(b.0, &b.1.client_id)));
    Ok(claimed_rows.into_iter().map(|(_, row)| row).collect())
}

pub(super) async fn count_due_rows(
    pool: &SqlitePool,
    reason: LookupReason,
    now: Timestamp,
) -> Result<u64, StoreError> {
    const COUNT_SQL_START: &str = "SELECT count(*) FROM connections WHERE ";
    let count: i64 = match reason {
        LookupReason::InventoryRefresh { reported_before } => {
            sqlx::query_scalar(concatcp!(COUNT_SQL_START, INVENTORY_REFRESH_CONDITION))
                .bind(reported_before.as_microsecond())
                .bind(now.as_microsecond())
        }
        LookupReason::MissingTenant {
            looked_up_before,
            max_attempts,
        } => sqlx::query_scalar(concatcp!(COUNT_SQL_START, MISSING_TENANT_CONDITION))
            .bind(looked_up_before.as_microsecond())
            .bind(now.as_microsecond())
            .bind(max_attempts),
    }
    .fetch_one(pool)
    .await?;
    Ok(u64::try_from(count).unwrap_or(0))
}

pub(super) async fn save_lookup_results(
    pool: &SqlitePool,
    results: &[LookupResult],
    now: Timestamp,
) -> Result<u64, StoreError> {
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    let mut changed_rows = 0;
    for result in results {
        let client_id = result.client_id.as_str();
        let row_version = result.row_version.as_microsecond();
        let query = match &result.outcome {
            LookupOutcome::Found {
                tenant,
                reported_to_inventory_at,
                inventory_eligible,
            } => sqlx::query(
                "UPDATE connections SET org_id = ?3, account = ?4, tenant_lookup_timestamp = NULL,
                        tenant_lookup_failure_count = 0,
                        stale_timestamp = coalesce(?5, stale_timestamp),
                        inventory_eligible = inventory_eligible AND ?6, updated_at = ?7
                  WHERE client_id = ?1 AND updated_at = ?2",
            )
            .bind(client_id)
            .bind(row_version)
            .bind(tenant.org_id.as_str())
            .bind(&tenant.account)
            .bind(reported_to_inventory_at.map(Timestamp::as_microsecond))
            .bind(inventory_eligible)
            .bind(now.as_microsecond()),
            LookupOutcome::NotFound => sqlx::query(
                "UPDATE connections SET org_id = '', account = '', tenant_lookup_timestamp = ?3,
                        tenant_lookup_failure_count = tenant_lookup_failure_count + 1,
                        updated_at = ?3
                  WHERE client_id = ?1 AND updated_at = ?2",
            )
            .bind(client_id)
            .bind(row_version)
            .bind(now.as_microsecond()),
            LookupOutcome::Unavailable => sqlx::query(
                "UPDATE connections SET lookup_claimed_until = ?3
                  WHERE client_id = ?1 AND updated_at = ?2",
            )
            .bind(client_id)
            .bind(row_version)
            .bind(now.as_microsecond()),
        };
        let update_result = query.execute(&mut *transaction).await?;
        if result.outcome != LookupOutcome::Unavailable {
            changed_rows += update_result.rows_affected();
        }
    }
    transaction.commit().await?;
    Ok(changed_rows)
}

pub(super) async fn restore_tenants(
    pool: &SqlitePool,
    clients: &[(ClientId, Tenant)],
    now: Timestamp,
) -> Result<u64, StoreError> {
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    let mut restored_rows = 0;
    for (client, tenant) in clients {
        let update_result = sqlx::query(
            "UPDATE connections SET org_id = ?2, account = ?3, tenant_lookup_timestamp = NULL,
                    updated_at = ?4
              WHERE client_id = ?1 AND org_id = ''",
        )
        .bind(client.as_str())
        .bind(tenant.org_id.as_str())
        .bind(&tenant.account)
        .bind(now.as_microsecond())
        .execute(&mut *transaction)
        .await?;
        restored_rows += update_result.rows_affected();
    }
    transaction.commit().await?;
    Ok(restored_rows)
}

pub(super) async fn count_tenantless_clients(
    pool: &SqlitePool,
    max_attempts: u32,
) -> Result<TenantlessCounts, StoreError> {
    let row = sqlx::query(
        "SELECT count(*) FILTER (WHERE tenant_lookup_failure_count < ?1) AS pending,
                count(*) FILTER (WHERE tenant_lookup_failure_count >= ?1) AS exhausted,
                min(tenant_lookup_timestamp)
                    FILTER (WHERE tenant_lookup_failure_count < ?1) AS oldest_lookup_at
           FROM connections WHERE org_id = ''",
    )
    .bind(max_attempts)
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
    pool: &SqlitePool,
    limit: u32,
) -> Result<Vec<TenantlessClient>, StoreError> {
    let rows = sqlx::query(
        "SELECT client_id, tenant_lookup_timestamp, tenant_lookup_failure_count, online_received_at
           FROM connections WHERE org_id = '' ORDER BY tenant_lookup_timestamp LIMIT ?",
    )
    .bind(limit)
    .fetch_all(pool)
    .await?;
    let tenantless_client = |row| -> Result<TenantlessClient, StoreError> {
        Ok(TenantlessClient {
            client_id: row::client_id(row)?,
            last_lookup_at: row::optional_timestamp(row, "tenant_lookup_timestamp")?,
            failed_lookups: row.try_get("tenant_lookup_failure_count")?,
            online_received_at: row::timestamp(row, "online_received_at")?,
        })
    };
    rows.iter().map(tenantless_client).collect()
}

pub(super) async fn reset_tenantless_clients(
    pool: &SqlitePool,
    clients: Option<&[ClientId]>,
) -> Result<u64, StoreError> {
    let result = sqlx::query(
        "UPDATE connections SET tenant_lookup_timestamp = 0, tenant_lookup_failure_count = 0,
                lookup_claimed_until = NULL
          WHERE org_id = '' AND (?1 IS NULL OR client_id IN (SELECT value FROM json_each(?1)))",
    )
    .bind(clients.map(row::client_ids_json))
    .execute(pool)
    .await?;
    Ok(result.rows_affected())
}

pub(super) async fn delete_tenantless_clients(
    pool: &SqlitePool,
    clients: &[ClientId],
) -> Result<u64, StoreError> {
    let result = sqlx::query(
        "DELETE FROM connections
          WHERE org_id = '' AND client_id IN (SELECT value FROM json_each(?))",
    )
    .bind(row::client_ids_json(clients))
    .execute(pool)
    .await?;
    Ok(result.rows_affected())
}

pub(super) async fn count_connections_with_tenant(pool: &SqlitePool) -> Result<u64, StoreError> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM connections WHERE org_id <> ''")
        .fetch_one(pool)
        .await?;
    Ok(u64::try_from(count).unwrap_or(0))
}

pub(super) async fn count_by_org(
    pool: &SqlitePool,
    limit: u32,
) -> Result<(Vec<OrgCount>, u64), StoreError> {
    let mut snapshot = pool.begin().await?;
    let rows = sqlx::query(
        "SELECT org_id, count(*) AS connections FROM connections WHERE org_id <> ''
          GROUP BY org_id ORDER BY connections DESC, org_id LIMIT ?",
    )
    .bind(limit)
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
