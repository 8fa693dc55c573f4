//! What updaters look for, and what they found.

use const_format::concatcp;
use sqlx::{PgPool, Row as _};
use time::OffsetDateTime;

use super::row;
use crate::domain::{ClientId, OrgId, Tenant, Timestamp};
use crate::store::{ClaimedConnection, LookupOutcome, LookupReason, LookupResult, OrgCount};
use crate::store::{StoreError, TenantlessClient, TenantlessCounts};

const COLUMNS: &str = "client_id, org_id, COALESCE(account, '') AS account, dialect, kind, \
     canonical_facts, catalog_service_facts, dispatchers, COALESCE(tags, 'null') AS tags, \
     client_name, client_version, updated_at";
const UNCLAIMED: &str = " AND (lookup_claimed_until IS NULL OR lookup_claimed_until < $2)";
const STALE: &str = concatcp!(
    "org_id <> '' AND inventory_eligible AND stale_timestamp < $1",
    UNCLAIMED
);
const TENANTLESS: &str = concatcp!(
    "org_id = '' AND tenant_lookup_timestamp < $1 \
     AND COALESCE(tenant_lookup_failure_count, 0) < $3",
    UNCLAIMED
);

pub(super) async fn claim(
    pool: &PgPool,
    due: LookupReason,
    limit: u32,
    unclaimed: Timestamp,
    until: Timestamp,
) -> Result<Vec<ClaimedConnection>, StoreError> {
    // SKIP LOCKED: another updater's claim is not waited for, and neither is a batch. By the moment
    // alone, in which the index has them: to order those of one moment too, PostgreSQL would sort
    // everything that is due, for each chunk again.
    const CLAIM: &str = "UPDATE connections SET lookup_claimed_until = $5 WHERE client_id IN (\
         SELECT client_id FROM connections WHERE ";
    const CLAIM_STALE: &str = concatcp!(
        CLAIM,
        STALE,
        " AND $3 = 0 ORDER BY stale_timestamp LIMIT $4 FOR UPDATE SKIP LOCKED) \
         RETURNING stale_timestamp AS due, ",
        COLUMNS
    );
    const CLAIM_TENANTLESS: &str = concatcp!(
        CLAIM,
        TENANTLESS,
        " ORDER BY tenant_lookup_timestamp LIMIT $4 FOR UPDATE SKIP LOCKED) \
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
        .bind(row::to_sql(before))
        .bind(row::to_sql(unclaimed))
        .bind(i32::try_from(most).unwrap_or(i32::MAX))
        .bind(i64::from(limit))
        .bind(row::to_sql(until))
        .fetch_all(pool)
        .await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        found.push((row::moment(row, "due")?, row::due(row)?));
    }
    // RETURNING has no order of its own.
    found.sort_by(|a, b| (a.0, &a.1.client_id).cmp(&(b.0, &b.1.client_id)));
    Ok(found.into_iter().map(|(_, due)| due).collect())
}

pub(super) async fn count(
    pool: &PgPool,
    due: LookupReason,
    now: Timestamp,
) -> Result<u64, StoreError> {
    const COUNT: &str = "SELECT count(*) FROM connections WHERE ";
    let count: i64 = match due {
        LookupReason::InventoryRefresh { before } => sqlx::query_scalar(concatcp!(COUNT, STALE))
            .bind(row::to_sql(before))
            .bind(row::to_sql(now)),
        LookupReason::MissingTenant {
            before,
            max_attempts,
        } => sqlx::query_scalar(concatcp!(COUNT, TENANTLESS))
            .bind(row::to_sql(before))
            .bind(row::to_sql(now))
            .bind(i32::try_from(max_attempts).unwrap_or(i32::MAX)),
    }
    .fetch_one(pool)
    .await?;
    Ok(u64::try_from(count).unwrap_or(0))
}

pub(super) async fn settle(
    pool: &PgPool,
    findings: &[LookupResult],
    now: Timestamp,
) -> Result<u64, StoreError> {
    // In the order in which batches lock rows, so that nobody waits in a circle.
    let mut sorted: Vec<&LookupResult> = findings.iter().collect();
    sorted.sort_by(|a, b| a.client_id.cmp(&b.client_id));
    let mut columns = Columns::default();
    for finding in sorted {
        columns.push(finding);
    }
    let done = sqlx::query(
        "UPDATE connections AS c SET
                org_id = CASE WHEN t.outcome = 'unavailable' THEN c.org_id ELSE t.org_id END,
                account = CASE WHEN t.outcome = 'unavailable' THEN c.account ELSE t.account END,
                tenant_lookup_timestamp = CASE t.outcome WHEN 'found' THEN NULL
                    WHEN 'not_found' THEN $8 ELSE c.tenant_lookup_timestamp END,
                tenant_lookup_failure_count = CASE t.outcome WHEN 'found' THEN 0
                    WHEN 'not_found' THEN COALESCE(c.tenant_lookup_failure_count, 0) + 1
                    ELSE c.tenant_lookup_failure_count END,
                stale_timestamp = COALESCE(t.reported_to_inventory_at, c.stale_timestamp),
                inventory_eligible = c.inventory_eligible AND NOT t.is_refused,
                lookup_claimed_until = CASE WHEN t.outcome = 'unavailable' THEN $8
                    ELSE c.lookup_claimed_until END,
                updated_at = CASE WHEN t.outcome = 'unavailable' THEN c.updated_at ELSE $8 END
           FROM UNNEST($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[],
                $6::timestamptz[], $7::bool[])
             AS t (client_id, version, outcome, org_id, account, reported_to_inventory_at, is_refused)
          WHERE c.client_id = t.client_id AND c.updated_at = t.version
         RETURNING t.outcome",
    )
    .bind(&columns.clients)
    .bind(&columns.versions)
    .bind(&columns.outcomes)
    .bind(&columns.organisations)
    .bind(&columns.accounts)
    .bind(&columns.announced)
    .bind(&columns.refused)
    .bind(row::to_sql(now))
    .fetch_all(pool)
    .await?;
    let mut written = 0;
    for row in &done {
        let outcome: String = row.try_get("outcome")?;
        written += u64::from(outcome != "unavailable");
    }
    Ok(written)
}

/// Findings as columns.
#[derive(Default)]
struct Columns<'a> {
    clients: Vec<&'a str>,
    versions: Vec<OffsetDateTime>,
    outcomes: Vec<&'static str>,
    organisations: Vec<&'a str>,
    accounts: Vec<&'a str>,
    announced: Vec<Option<OffsetDateTime>>,
    refused: Vec<bool>,
}

impl<'a> Columns<'a> {
    fn push(&mut self, finding: &'a LookupResult) {
        self.clients.push(finding.client_id.as_str());
        self.versions.push(row::to_sql(finding.version));
        let (outcome, organisation, account, announced, refused) = match &finding.outcome {
            LookupOutcome::Found {
                tenant,
                reported_to_inventory_at,
                is_refused,
            } => (
                "found",
                tenant.org_id.as_str(),
                tenant.account.as_str(),
                reported_to_inventory_at.map(row::to_sql),
                *is_refused,
            ),
            LookupOutcome::NotFound => ("not_found", "", "", None, false),
            LookupOutcome::Unavailable => ("unavailable", "", "", None, false),
        };
        self.outcomes.push(outcome);
        self.organisations.push(organisation);
        self.accounts.push(account);
        self.announced.push(announced);
        self.refused.push(refused);
    }
}

pub(super) async fn restore_tenants(
    pool: &PgPool,
    clients: &[(ClientId, Tenant)],
    now: Timestamp,
) -> Result<u64, StoreError> {
    let mut sorted: Vec<&(ClientId, Tenant)> = clients.iter().collect();
    sorted.sort_by(|a, b| a.0.cmp(&b.0));
    let names: Vec<&str> = sorted.iter().map(|(client, _)| client.as_str()).collect();
    let organisations: Vec<&str> = sorted.iter().map(|(_, t)| t.org_id.as_str()).collect();
    let accounts: Vec<&str> = sorted.iter().map(|(_, t)| t.account.as_str()).collect();
    let done = sqlx::query(
        "UPDATE connections AS c SET org_id = t.org_id, account = t.account,
                tenant_lookup_timestamp = NULL, updated_at = $4
           FROM UNNEST($1::text[], $2::text[], $3::text[]) AS t (client_id, org_id, account)
          WHERE c.client_id = t.client_id AND c.org_id = ''",
    )
    .bind(&names)
    .bind(&organisations)
    .bind(&accounts)
    .bind(row::to_sql(now))
    .execute(pool)
    .await?;
    Ok(done.rows_affected())
}

pub(super) async fn count_tenantless(
    pool: &PgPool,
    max_attempts: u32,
) -> Result<TenantlessCounts, StoreError> {
    let row = sqlx::query(
        "SELECT count(*) FILTER (WHERE COALESCE(tenant_lookup_failure_count, 0) < $1) AS waiting,
                count(*) FILTER (WHERE COALESCE(tenant_lookup_failure_count, 0) >= $1) AS exhausted,
                min(tenant_lookup_timestamp)
                    FILTER (WHERE COALESCE(tenant_lookup_failure_count, 0) < $1) AS oldest
           FROM connections WHERE org_id = ''",
    )
    .bind(i32::try_from(max_attempts).unwrap_or(i32::MAX))
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
    let read = |row| -> Result<TenantlessClient, StoreError> {
        Ok(TenantlessClient {
            client_id: row::client_id(row)?,
            looked_up: row::moment_or_none(row, "tenant_lookup_timestamp")?,
            failures: u32::try_from(row.try_get::<i32, _>("tenant_lookup_failure_count")?)
                .unwrap_or(0),
            online_received_at: row::moment(row, "online_received_at")?,
        })
    };
    rows.iter().map(read).collect()
}

pub(super) async fn reset_tenantless(
    pool: &PgPool,
    clients: Option<&[ClientId]>,
) -> Result<u64, StoreError> {
    let done = sqlx::query(
        "UPDATE connections SET tenant_lookup_timestamp = 'epoch', tenant_lookup_failure_count = 0,
                lookup_claimed_until = NULL
          WHERE org_id = '' AND ($1::text[] IS NULL OR client_id = ANY($1))",
    )
    .bind(clients.map(names))
    .execute(pool)
    .await?;
    Ok(done.rows_affected())
}

pub(super) async fn delete_tenantless(
    pool: &PgPool,
    clients: &[ClientId],
) -> Result<u64, StoreError> {
    let done = sqlx::query(
        "DELETE FROM connections
          WHERE org_id = '' AND client_id = ANY($1)",
    )
    .bind(names(clients))
    .execute(pool)
    .await?;
    Ok(done.rows_affected())
}

pub(super) async fn count_connected(pool: &PgPool) -> Result<u64, StoreError> {
    let sum = "SELECT COALESCE(sum(change), 0)::bigint FROM org_connection_deltas";
    let count: i64 = sqlx::query_scalar(sum).fetch_one(pool).await?;
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

fn names(clients: &[ClientId]) -> Vec<&str> {
    clients.iter().map(ClientId::as_str).collect()
}
