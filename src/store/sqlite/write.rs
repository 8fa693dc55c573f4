//! A batch, in one transaction.

use sqlx::{QueryBuilder, Sqlite, SqliteConnection, SqlitePool};

use crate::domain::{ClientId, MessageId, Timestamp};
use crate::store::{Arrival, Batch, Fence, StoreError, TenantChange, Written};

use super::fence;

pub(super) async fn record_batch(
    pool: &SqlitePool,
    batch: &Batch,
    fences: &[Fence],
    now: Timestamp,
) -> Result<Written, StoreError> {
    // IMMEDIATE: whoever will write says so first, so that nobody is refused half-way.
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
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
    connection: &mut SqliteConnection,
    arrivals: &[Arrival],
    now: Timestamp,
) -> Result<(), StoreError> {
    let now = now.as_microsecond();
    let mut insert = QueryBuilder::<Sqlite>::new(
        "INSERT INTO connections (client_id, org_id, account, dialect, kind, topic_prefix, \
         canonical_facts, dispatchers, tags, client_name, client_version, message_id, \
         message_sent, tenant_lookup_timestamp, last_seen, created_at, updated_at) ",
    );
    insert.push_values(arrivals, |mut row, arrival| {
        let (org_id, account, looked_up) = tenant_columns(&arrival.tenant);
        row.push_bind(arrival.client_id.as_str())
            .push_bind(org_id)
            .push_bind(account)
            .push_bind(arrival.dialect.as_str())
            .push_bind(arrival.kind.as_str())
            .push_bind(&arrival.topic_prefix)
            .push_bind(arrival.reported.canonical_facts.to_string())
            .push_bind(arrival.reported.dispatchers.to_string())
            .push_bind(arrival.reported.tags.to_string())
            .push_bind(&arrival.reported.client_name)
            .push_bind(&arrival.reported.client_version)
            .push_bind(arrival.message_id.as_ref().map(MessageId::as_str))
            .push_bind(arrival.message_sent.as_microsecond())
            .push_bind(looked_up)
            .push_bind(arrival.last_seen.as_microsecond())
            .push_bind(now)
            .push_bind(now);
    });
    // A tenant that was found ends the count of failures; the count of a row without one is the
    // updater's to keep.
    insert.push(
        " ON CONFLICT (client_id) DO UPDATE SET \
         org_id = excluded.org_id, account = excluded.account, dialect = excluded.dialect, \
         kind = excluded.kind, topic_prefix = excluded.topic_prefix, \
         canonical_facts = excluded.canonical_facts, dispatchers = excluded.dispatchers, \
         tags = excluded.tags, client_name = excluded.client_name, \
         client_version = excluded.client_version, message_id = excluded.message_id, \
         message_sent = excluded.message_sent, \
         tenant_lookup_timestamp = excluded.tenant_lookup_timestamp, \
         tenant_lookup_failure_count = CASE WHEN excluded.org_id <> '' THEN 0 \
             ELSE connections.tenant_lookup_failure_count END, \
         last_seen = excluded.last_seen, updated_at = excluded.updated_at",
    );
    // Not kept prepared: there are as many texts as batch sizes.
    insert
        .build()
        .persistent(false)
        .execute(&mut *connection)
        .await?;
    let back: Vec<ClientId> = arrivals.iter().map(|a| a.client_id.clone()).collect();
    sqlx::query("DELETE FROM departed WHERE client_id IN (SELECT value FROM json_each(?))")
        .bind(names(&back))
        .execute(connection)
        .await?;
    Ok(())
}

async fn depart(
    connection: &mut SqliteConnection,
    departures: &[ClientId],
    now: Timestamp,
) -> Result<(), StoreError> {
    let names = names(departures);
    sqlx::query(
        "INSERT OR REPLACE INTO departed (client_id, org_id, account, dialect, kind, topic_prefix, \
         canonical_facts, dispatchers, tags, client_name, client_version, message_id, \
         message_sent, tenant_lookup_timestamp, tenant_lookup_failure_count, departed_at) \
         SELECT client_id, org_id, account, dialect, kind, topic_prefix, canonical_facts, \
         dispatchers, tags, client_name, client_version, message_id, message_sent, \
         tenant_lookup_timestamp, tenant_lookup_failure_count, ?2 \
           FROM connections WHERE client_id IN (SELECT value FROM json_each(?1))",
    )
    .bind(&names)
    .bind(now.as_microsecond())
    .execute(&mut *connection)
    .await?;
    sqlx::query("DELETE FROM connections WHERE client_id IN (SELECT value FROM json_each(?))")
        .bind(&names)
        .execute(connection)
        .await?;
    Ok(())
}

/// The organisation, the account, and when a tenant was last looked for in vain.
fn tenant_columns(change: &TenantChange) -> (&str, &str, Option<i64>) {
    match change {
        TenantChange::Found(tenant) | TenantChange::Kept(tenant) => {
            (tenant.org_id.as_str(), &tenant.account, None)
        }
        TenantChange::NotFound(at) => ("", "", Some(at.as_microsecond())),
        // The distant past: due at once.
        TenantChange::Unknown => ("", "", Some(0)),
    }
}

/// Client ids as a JSON array: one parameter, however many there are.
pub(super) fn names(clients: &[ClientId]) -> String {
    let names: Vec<&str> = clients.iter().map(ClientId::as_str).collect();
    serde_json::json!(names).to_string()
}
