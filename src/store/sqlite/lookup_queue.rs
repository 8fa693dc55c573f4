//! What updaters look for, and what they found.

use const_format::concatcp;
use sqlx::{Row as _, SqlitePool};

use super::presence::names;
use super::row;
use crate::domain::{ClientId, OrgId, Tenant, Timestamp};
use crate::store::{ClaimedConnection, LookupOutcome, LookupReason, LookupResult, OrgCount};
use crate::store::{StoreError, TenantlessClient, TenantlessCounts};

const COLUMNS: &str = "client_id, org_id, account, dialect, kind, canonical_facts, catalog_service_facts, \
     dispatchers, tags, client_name, client_version, updated_at";
const UNCLAIMED: &str = " AND (lookup_claimed_until IS NULL OR lookup_claimed_until < ?2)";
const STALE: &str = concatcp!(
    "org_id <> '' AND inventory_eligible AND stale_timestamp < ?1",
    UNCLAIMED
);
const TENANTLESS: &str = concatcp!(
    "org_id = '' AND tenant_lookup_timestamp < ?1 AND tenant_lookup_failure_count < ?3",
    UNCLAIMED
);

pub(super) async fn claim(
    pool: &SqlitePool,
    due: LookupReason,
    limit: u32,
    unclaimed: Timestamp,
    until: Timestamp,
) -> Result<Vec<ClaimedConnection>, StoreError> {
    // By the moment alone, in which the index has them: see the other store.
    const CLAIM: &str = "UPDATE connections SET lookup_claimed_until = ?5 WHERE client_id IN (\
         SELECT client_id FROM connections WHERE ";
    const CLAIM_STALE: &str = concatcp!(
        CLAIM,
        STALE,
        " AND ?3 = 0 ORDER BY stale_timestamp LIMIT ?4) \
         RETURNING stale_timestamp AS due, ",
        COLUMNS
    );
    const CLAIM_TENANTLESS: &str = concatcp!(
        CLAIM,
        TENANTLESS,
        " ORDER BY tenant_lookup_timestamp LIMIT ?4) \
         RETURNING tenant_lookup_timestamp AS due, ",
        COLUMNS
    );
    let (sql, before, most) = match due {
        LookupReason::InventoryRefresh { before } => (CLAIM_STALE, before, 0),
        LookupReason::MissingTenant {
            before,
            max_attempts,
        } => (CLAIM_TENANTLESS, before, max_attempts),
    };
    let rows = sqlx::query(sql)
        .bind(before.as_microsecond())
        .bind(unclaimed.as_microsecond())
        .bind(most)
        .bind(limit)
        .bind(until.as_microsecond())
        .fetch_all(pool)
        .await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        found.push((row.try_get::<i64, _>("due")?, row::due(row)?));
    }
    // RETURNING has no order of its own.
    found.sort_by(|a, b| (a.0, &a.1.client_id).cmp(&(b.0, &b.1.client_id)));
    Ok(found.into_iter().map(|(_, due)| due).collect())
}

pub(super) async fn count(
    pool: &SqlitePool,
    due: LookupReason,
    now: Timestamp,
) -> Result<u64, StoreError> {
    const COUNT: &str = "SELECT count(*) FROM connections WHERE ";
    let count: i64 = match due {
        LookupReason::InventoryRefresh { before } => sqlx::query_scalar(concatcp!(COUNT, STALE))
            .bind(before.as_microsecond())
            .bind(now.as_microsecond()),
        LookupReason::MissingTenant {
            before,
            max_attempts,
        } => sqlx::query_scalar(concatcp!(COUNT, TENANTLESS))
            .bind(before.as_microsecond())
            .bind(now.as_microsecond())
            .bind(max_attempts),
    }
    .fetch_one(pool)
    .await?;
    Ok(u64::try_from(count).unwrap_or(0))
}

pub(super) async fn settle(
    pool: &SqlitePool,
    findings: &[LookupResult],
    now: Timestamp,
) -> Result<u64, StoreError> {
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    let mut written = 0;
    for finding in findings {
        let client = finding.client_id.as_str();
        let version = finding.version.as_microsecond();
        let query = match &finding.outcome {
            LookupOutcome::Found {
                tenant,
                reported_to_inventory_at,
                is_refused,
            } => sqlx::query(
                "UPDATE connections SET org_id = ?3, account = ?4, tenant_lookup_timestamp = NULL,
                        tenant_lookup_failure_count = 0,
                        stale_timestamp = coalesce(?5, stale_timestamp),
                        inventory_eligible = inventory_eligible AND NOT ?6, updated_at = ?7
                  WHERE client_id = ?1 AND updated_at = ?2",
            )
            .bind(client)
            .bind(version)
            .bind(tenant.org_id.as_str())
            .bind(&tenant.account)
            .bind(reported_to_inventory_at.map(Timestamp::as_microsecond))
            .bind(is_refused)
            .bind(now.as_microsecond()),
            LookupOutcome::NotFound => sqlx::query(
                "UPDATE connections SET org_id = '', account = '', tenant_lookup_timestamp = ?3,
                        tenant_lookup_failure_count = tenant_lookup_failure_count + 1,
                        updated_at = ?3
                  WHERE client_id = ?1 AND updated_at = ?2",
            )
            .bind(client)
            .bind(version)
            .bind(now.as_microsecond()),
            LookupOutcome::Unavailable => sqlx::query(
                "UPDATE connections SET lookup_claimed_until = ?3
                  WHERE client_id = ?1 AND updated_at = ?2",
            )
            .bind(client)
            .bind(version)
            .bind(now.as_microsecond()),
        };
        let done = query.execute(&mut *transaction).await?;
        if finding.outcome != LookupOutcome::Unavailable {
            written += done.rows_affected();
        }
    }
    transaction.commit().await?;
    Ok(written)
}

pub(super) async fn restore_tenants(
    pool: &SqlitePool,
    clients: &[(ClientId, Tenant)],
    now: Timestamp,
) -> Result<u64, StoreError> {
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    let mut restored = 0;
    for (client, tenant) in clients {
        let done = sqlx::query(
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
        restored += done.rows_affected();
    }
    transaction.commit().await?;
    Ok(restored)
}

pub(super) async fn count_tenantless(
    pool: &SqlitePool,
    max_attempts: u32,
) -> Result<TenantlessCounts, StoreError> {
    let row = sqlx::query(
        "SELECT count(*) FILTER (WHERE tenant_lookup_failure_count < ?1) AS waiting,
                count(*) FILTER (WHERE tenant_lookup_failure_count >= ?1) AS exhausted,
                min(tenant_lookup_timestamp)
                    FILTER (WHERE tenant_lookup_failure_count < ?1) AS oldest
           FROM connections WHERE org_id = ''",
    )
    .bind(max_attempts)
    .fetch_one(pool)
    .await?;
    let count = |column| -> Result<u64, StoreError> {
        Ok(u64::try_from(row.try_get::<i64, _>(column)?).unwrap_or(0))
    };
    Ok(TenantlessCounts {
        waiting: count("waiting")?,
        exhausted: count("exhausted")?,
        oldest: row::moment_or_none(&row, "oldest")?,
    })
}

pub(super) async fn list_tenantless(
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
    let read = |row| -> Result<TenantlessClient, StoreError> {
        Ok(TenantlessClient {
            client_id: row::client_id(row)?,
            looked_up: row::moment_or_none(row, "tenant_lookup_timestamp")?,
            failures: row.try_get("tenant_lookup_failure_count")?,
            online_received_at: row::moment(row, "online_received_at")?,
        })
    };
    rows.iter().map(read).collect()
}

pub(super) async fn reset_tenantless(
    pool: &SqlitePool,
    clients: Option<&[ClientId]>,
) -> Result<u64, StoreError> {
    let done = sqlx::query(
        "UPDATE connections SET tenant_lookup_timestamp = 0, tenant_lookup_failure_count = 0,
                lookup_claimed_until = NULL
          WHERE org_id = '' AND (?1 IS NULL OR client_id IN (SELECT value FROM json_each(?1)))",
    )
    .bind(clients.map(names))
    .execute(pool)
    .await?;
    Ok(done.rows_affected())
}

pub(super) async fn delete_tenantless(
    pool: &SqlitePool,
    clients: &[ClientId],
) -> Result<u64, StoreError> {
    let done = sqlx::query(
        "DELETE FROM connections
          WHERE org_id = '' AND client_id IN (SELECT value FROM json_each(?))",
    )
    .bind(names(clients))
    .execute(pool)
    .await?;
    Ok(done.rows_affected())
}

pub(super) async fn count_connected(pool: &SqlitePool) -> Result<u64, StoreError> {
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
    let without: i64 = sqlx::query_scalar("SELECT count(*) FROM connections WHERE org_id = ''")
        .fetch_one(&mut *snapshot)
        .await?;
    snapshot.commit().await?;
    let mut counts = Vec::with_capacity(rows.len());
    for row in &rows {
        let org: String = row.try_get("org_id")?;
        let count: i64 = row.try_get("connections")?;
        if let Ok(org) = OrgId::new(&org) {
            counts.push((org, u64::try_from(count).unwrap_or(0)));
        }
    }
    Ok((counts, u64::try_from(without).unwrap_or(0)))
}
