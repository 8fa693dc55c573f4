//! A batch, in one transaction: each column goes as one array.

use sqlx::{PgConnection, PgPool};
use time::OffsetDateTime;

use super::fence;
use super::row::to_sql;
use crate::domain::{ClientId, Timestamp};
use crate::store::{Arrival, Batch, Fence, StoreError, TenantChange, Written};

pub(super) async fn record_batch(
    pool: &PgPool,
    batch: &Batch,
    fences: &[Fence],
    now: Timestamp,
) -> Result<Written, StoreError> {
    let mut transaction = pool.begin().await?;
    let lost = fence::broken(&mut transaction, fences).await?;
    if !lost.is_empty() {
        return Ok(Written::Fenced(lost));
    }
    if !batch.departures.is_empty() {
        depart(&mut transaction, &batch.departures, now).await?;
    }
    if !batch.arrivals.is_empty() {
        arrive(&mut transaction, &batch.arrivals, now).await?;
    }
    transaction.commit().await?;
    Ok(Written::Done)
}

async fn arrive(
    connection: &mut PgConnection,
    arrivals: &[Arrival],
    now: Timestamp,
) -> Result<(), StoreError> {
    // A tenant that was found ends the count of failures; the count of a row without one is the
    // updater's to keep.
    const UPSERT: &str = "
        INSERT INTO connections (client_id, org_id, account, dialect, kind, topic_prefix,
               canonical_facts, dispatchers, tags, client_name, client_version, message_id,
               message_sent, tenant_lookup_timestamp, last_seen, created_at, updated_at)
        SELECT client_id, org_id, account, dialect, kind, topic_prefix,
               canonical_facts::jsonb, dispatchers::jsonb, tags::jsonb, client_name,
               client_version, message_id, message_sent, looked_up, last_seen, $16, $16
          FROM UNNEST($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
               $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::text[],
               $13::timestamptz[], $14::timestamptz[], $15::timestamptz[])
            AS t (client_id, org_id, account, dialect, kind, topic_prefix, canonical_facts,
               dispatchers, tags, client_name, client_version, message_id, message_sent,
               looked_up, last_seen)
        ON CONFLICT (client_id) DO UPDATE SET
               org_id = excluded.org_id, account = excluded.account, dialect = excluded.dialect,
               kind = excluded.kind, topic_prefix = excluded.topic_prefix,
               canonical_facts = excluded.canonical_facts, dispatchers = excluded.dispatchers,
               tags = excluded.tags, client_name = excluded.client_name,
               client_version = excluded.client_version, message_id = excluded.message_id,
               message_sent = excluded.message_sent,
               tenant_lookup_timestamp = excluded.tenant_lookup_timestamp,
               tenant_lookup_failure_count = CASE WHEN excluded.org_id <> '' THEN 0
                   ELSE connections.tenant_lookup_failure_count END,
               last_seen = excluded.last_seen, updated_at = excluded.updated_at";
    let texts = |of: fn(&Arrival) -> String| arrivals.iter().map(of).collect::<Vec<String>>();
    let moments = |of: fn(&Arrival) -> Timestamp| {
        let moments = arrivals.iter().map(of).map(to_sql);
        moments.collect::<Vec<OffsetDateTime>>()
    };
    let (mut organisations, mut accounts, mut looked_up) = (vec![], vec![], vec![]);
    for arrival in arrivals {
        let (org_id, account, at) = tenant_columns(&arrival.tenant);
        organisations.push(org_id);
        accounts.push(account);
        looked_up.push(at);
    }
    let names = texts(|a| a.client_id.to_string());
    let message_ids: Vec<Option<&str>> = arrivals
        .iter()
        .map(|a| a.message_id.as_ref().map(crate::domain::MessageId::as_str))
        .collect();
    sqlx::query(UPSERT)
        .bind(&names)
        .bind(&organisations)
        .bind(&accounts)
        .bind(texts(|a| a.dialect.as_str().to_owned()))
        .bind(texts(|a| a.kind.as_str().to_owned()))
        .bind(texts(|a| a.topic_prefix.clone()))
        .bind(texts(|a| a.reported.canonical_facts.to_string()))
        .bind(texts(|a| a.reported.dispatchers.to_string()))
        .bind(texts(|a| a.reported.tags.to_string()))
        .bind(texts(|a| a.reported.client_name.clone()))
        .bind(texts(|a| a.reported.client_version.clone()))
        .bind(&message_ids)
        .bind(moments(|a| a.message_sent))
        .bind(&looked_up)
        .bind(moments(|a| a.last_seen))
        .bind(to_sql(now))
        .execute(&mut *connection)
        .await?;
    sqlx::query("DELETE FROM departed WHERE client_id = ANY($1)")
        .bind(&names)
        .execute(connection)
        .await?;
    Ok(())
}

async fn depart(
    connection: &mut PgConnection,
    departures: &[ClientId],
    now: Timestamp,
) -> Result<(), StoreError> {
    let names: Vec<&str> = departures.iter().map(ClientId::as_str).collect();
    sqlx::query(
        "WITH gone AS (
             DELETE FROM connections WHERE client_id = ANY($1)
             RETURNING client_id, org_id, account, dialect, kind, topic_prefix, canonical_facts,
                 dispatchers, tags, client_name, client_version, message_id, message_sent,
                 tenant_lookup_timestamp, tenant_lookup_failure_count)
         INSERT INTO departed (client_id, org_id, account, dialect, kind, topic_prefix,
                 canonical_facts, dispatchers, tags, client_name, client_version, message_id,
                 message_sent, tenant_lookup_timestamp, tenant_lookup_failure_count, departed_at)
         SELECT gone.*, $2 FROM gone ORDER BY client_id
         ON CONFLICT (client_id) DO UPDATE SET
                 org_id = excluded.org_id, account = excluded.account, dialect = excluded.dialect,
                 kind = excluded.kind, topic_prefix = excluded.topic_prefix,
                 canonical_facts = excluded.canonical_facts, dispatchers = excluded.dispatchers,
                 tags = excluded.tags, client_name = excluded.client_name,
                 client_version = excluded.client_version, message_id = excluded.message_id,
                 message_sent = excluded.message_sent,
                 tenant_lookup_timestamp = excluded.tenant_lookup_timestamp,
                 tenant_lookup_failure_count = excluded.tenant_lookup_failure_count,
                 departed_at = excluded.departed_at",
    )
    .bind(&names)
    .bind(to_sql(now))
    .execute(connection)
    .await?;
    Ok(())
}

/// The organisation, the account, and when a tenant was last looked for in vain.
fn tenant_columns(change: &TenantChange) -> (&str, &str, Option<OffsetDateTime>) {
    match change {
        TenantChange::Found(tenant) | TenantChange::Kept(tenant) => {
            (tenant.org_id.as_str(), &tenant.account, None)
        }
        TenantChange::NotFound(at) => ("", "", Some(to_sql(*at))),
        // The distant past: due at once.
        TenantChange::Unknown => ("", "", Some(OffsetDateTime::UNIX_EPOCH)),
    }
}
