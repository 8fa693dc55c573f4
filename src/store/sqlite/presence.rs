//! A batch, in one transaction.

use const_format::concatcp;
use serde_json::json;
use sqlx::{QueryBuilder, Sqlite, SqliteConnection, SqlitePool};

use super::{dead_letters, fencing};
use crate::domain::{ClientId, MessageId, Timestamp};
use crate::store::{
    ConnectionEnd, ConnectionUpsert, HeartbeatUpdate, PartitionLease, PresenceBatch,
};
use crate::store::{StoreError, TenantChange, WriteOutcome};

pub(super) async fn record_batch(
    pool: &SqlitePool,
    batch: &PresenceBatch,
    fences: &[PartitionLease],
    now: Timestamp,
) -> Result<WriteOutcome, StoreError> {
    // IMMEDIATE: whoever will write says so first, so that nobody is refused half-way.
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    let lost = fencing::broken(&mut transaction, fences).await?;
    if !lost.is_empty() {
        return Ok(WriteOutcome::Fenced(lost));
    }
    if !batch.arrivals.is_empty() {
        arrive(&mut transaction, &batch.arrivals, now).await?;
    }
    for sighting in &batch.sightings {
        see(&mut transaction, sighting, now).await?;
    }
    if !batch.departures.is_empty() {
        depart(&mut transaction, &batch.departures).await?;
    }
    if !batch.dead_letters.is_empty() {
        dead_letters::keep(&mut transaction, &batch.dead_letters, batch.letters).await?;
    }
    transaction.commit().await?;
    Ok(WriteOutcome::Committed)
}

async fn arrive(
    connection: &mut SqliteConnection,
    arrivals: &[ConnectionUpsert],
    now: Timestamp,
) -> Result<(), StoreError> {
    let now = now.as_microsecond();
    let mut insert = QueryBuilder::<Sqlite>::new(
        "INSERT INTO connections (client_id, org_id, account, dialect, kind, topic_prefix, \
         canonical_facts, catalog_service_facts, dispatchers, tags, client_name, client_version, \
         message_id, message_sent, tenant_lookup_timestamp, online_received_at, last_heartbeat_at, \
         queue_partition, queue_offset, inventory_eligible, stale_timestamp, created_at, \
         updated_at) ",
    );
    insert.push_values(arrivals, |mut row, arrival| {
        let (org_id, account, looked_up) = tenant_columns(&arrival.tenant);
        let reported = &arrival.reported;
        let place = arrival.heard.place;
        row.push_bind(arrival.client_id.as_str())
            .push_bind(org_id)
            .push_bind(account)
            .push_bind(arrival.dialect.as_str())
            .push_bind(arrival.kind.as_str())
            .push_bind(&arrival.topic_prefix)
            .push_bind(reported.canonical_facts.to_string())
            .push_bind(reported.catalog_service_facts.to_string())
            .push_bind(reported.dispatchers.to_string())
            .push_bind(reported.tags.to_string())
            .push_bind(&reported.client_name)
            .push_bind(&reported.client_version)
            .push_bind(arrival.message_id.as_ref().map(MessageId::as_str))
            .push_bind(arrival.message_sent.as_microsecond())
            .push_bind(looked_up)
            .push_bind(arrival.heard.at.as_microsecond())
            .push_bind(arrival.last_heartbeat_at.map(Timestamp::as_microsecond))
            .push_bind(place.map(|place| place.partition))
            .push_bind(place.map(|place| place.offset))
            .push_bind(arrival.inventory_eligible)
            .push_bind(
                arrival
                    .reported_to_inventory_at
                    .map_or(0, Timestamp::as_microsecond),
            )
            .push_bind(now)
            .push_bind(now);
    });
    // A tenant that was found ends the count of failures; the count of a row without one is the
    // updater's to keep. A sign of life that is later than this message stays.
    insert.push(
        " ON CONFLICT (client_id) DO UPDATE SET \
         org_id = excluded.org_id, account = excluded.account, dialect = excluded.dialect, \
         kind = excluded.kind, topic_prefix = excluded.topic_prefix, \
         canonical_facts = excluded.canonical_facts, \
         catalog_service_facts = excluded.catalog_service_facts, \
         dispatchers = excluded.dispatchers, \
         tags = excluded.tags, client_name = excluded.client_name, \
         client_version = excluded.client_version, message_id = excluded.message_id, \
         message_sent = excluded.message_sent, \
         tenant_lookup_timestamp = excluded.tenant_lookup_timestamp, \
         tenant_lookup_failure_count = CASE WHEN excluded.org_id <> '' THEN 0 \
             ELSE connections.tenant_lookup_failure_count END, \
         last_heartbeat_at = CASE WHEN connections.last_heartbeat_at > excluded.online_received_at \
             THEN max(connections.last_heartbeat_at, coalesce(excluded.last_heartbeat_at, 0)) \
             ELSE excluded.last_heartbeat_at END, offline_received_at = NULL, \
         queue_partition = excluded.queue_partition, queue_offset = excluded.queue_offset, \
         inventory_eligible = excluded.inventory_eligible, \
         stale_timestamp = CASE WHEN excluded.org_id <> '' THEN excluded.stale_timestamp \
             ELSE connections.stale_timestamp END, \
         online_received_at = excluded.online_received_at, updated_at = excluded.updated_at",
    );
    // Not kept prepared: there are as many texts as batch sizes.
    insert
        .build()
        .persistent(false)
        .execute(&mut *connection)
        .await?;
    let back: Vec<ClientId> = arrivals.iter().map(|a| a.client_id.clone()).collect();
    let back = names(&back);
    // Whoever belongs to nobody does not start over by leaving and coming back.
    sqlx::query(
        "UPDATE connections SET tenant_lookup_failure_count = disconnected_clients.tenant_lookup_failure_count
           FROM disconnected_clients
          WHERE disconnected_clients.client_id = connections.client_id AND connections.org_id = ''
            AND disconnected_clients.client_id IN (SELECT value FROM json_each(?))",
    )
    .bind(&back)
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "DELETE FROM disconnected_clients WHERE client_id IN (SELECT value FROM json_each(?))",
    )
    .bind(&back)
    .execute(connection)
    .await?;
    Ok(())
}

/// One at a time: there is at most one a connect, and here nobody waits on a network for it.
async fn see(
    connection: &mut SqliteConnection,
    sighting: &HeartbeatUpdate,
    now: Timestamp,
) -> Result<(), StoreError> {
    let client = sighting.client_id.as_str();
    let at = sighting.at.as_microsecond();
    sqlx::query(
        "UPDATE connections SET last_heartbeat_at = max(coalesce(last_heartbeat_at, ?2), ?2)
          WHERE client_id = ?1 AND coalesce(offline_received_at, online_received_at) < ?2",
    )
    .bind(client)
    .bind(at)
    .execute(&mut *connection)
    .await?;
    let tenant = sighting.tenant.as_ref().map(tenant_columns);
    let (org_id, account, looked_up) = match tenant {
        Some((org_id, account, looked_up)) => (Some(org_id), Some(account), looked_up),
        None => (None, None, None),
    };
    let back = sqlx::query(
        "INSERT INTO connections (client_id, org_id, account, dialect, kind, topic_prefix, \
         canonical_facts, catalog_service_facts, dispatchers, tags, client_name, client_version, \
         message_id, message_sent, queue_partition, queue_offset, tenant_lookup_timestamp, \
         tenant_lookup_failure_count, online_received_at, last_heartbeat_at, offline_received_at, created_at, updated_at) \
         SELECT client_id, coalesce(?3, org_id), coalesce(?4, account), dialect, kind, \
         topic_prefix, canonical_facts, catalog_service_facts, dispatchers, tags, client_name, \
         client_version, message_id, message_sent, queue_partition, queue_offset, \
         CASE WHEN ?3 IS NULL THEN tenant_lookup_timestamp ELSE ?5 END, \
         CASE WHEN ?3 <> '' THEN 0 ELSE tenant_lookup_failure_count END, \
         ?2, ?2, disconnected_at, ?6, ?6 \
           FROM disconnected_clients WHERE client_id = ?1 AND disconnected_at < ?2 \
         ON CONFLICT (client_id) DO NOTHING",
    )
    .bind(client)
    .bind(at)
    .bind(org_id)
    .bind(account)
    .bind(looked_up)
    .bind(now.as_microsecond())
    .execute(&mut *connection)
    .await?;
    if back.rows_affected() > 0 {
        sqlx::query("DELETE FROM disconnected_clients WHERE client_id = ?")
            .bind(client)
            .execute(connection)
            .await?;
    }
    Ok(())
}

/// Whom a later sign of life holds stays, with the news; the others go; of those who had gone
/// before, the latest farewell is what counts.
async fn depart(
    connection: &mut SqliteConnection,
    departures: &[ConnectionEnd],
) -> Result<(), StoreError> {
    const TOLD: &str = "WITH told AS (
        SELECT value ->> 0 AS client_id, value ->> 1 AS at, value ->> 2 AS partition,
               value ->> 3 AS place
          FROM json_each(?1)) ";
    const REMEMBER: &str = concatcp!(
        TOLD,
        "INSERT OR REPLACE INTO disconnected_clients (client_id, org_id, account, dialect, kind, \
         topic_prefix, canonical_facts, catalog_service_facts, dispatchers, tags, client_name, \
         client_version, message_id, message_sent, tenant_lookup_timestamp, \
         tenant_lookup_failure_count, disconnected_at, queue_partition, queue_offset) \
         SELECT c.client_id, org_id, account, dialect, kind, topic_prefix, canonical_facts, \
         catalog_service_facts, dispatchers, tags, client_name, client_version, message_id, \
         message_sent, tenant_lookup_timestamp, tenant_lookup_failure_count, told.at, \
         coalesce(told.partition, c.queue_partition), coalesce(told.place, c.queue_offset) \
         FROM told JOIN connections AS c USING (client_id) \
         WHERE c.last_heartbeat_at IS NULL OR c.last_heartbeat_at <= told.at"
    );
    const REMOVE: &str = concatcp!(
        TOLD,
        "DELETE FROM connections WHERE client_id IN ( \
         SELECT c.client_id FROM told JOIN connections AS c USING (client_id) \
         WHERE c.last_heartbeat_at IS NULL OR c.last_heartbeat_at <= told.at)"
    );
    const HOLD: &str = concatcp!(
        TOLD,
        "UPDATE connections AS c SET offline_received_at = told.at, \
         queue_partition = coalesce(told.partition, c.queue_partition), \
         queue_offset = coalesce(told.place, c.queue_offset) FROM told \
         WHERE c.client_id = told.client_id AND coalesce(c.offline_received_at, c.online_received_at) < told.at"
    );
    const AGAIN: &str = concatcp!(
        TOLD,
        "UPDATE disconnected_clients AS d SET disconnected_at = told.at, \
         queue_partition = coalesce(told.partition, d.queue_partition), \
         queue_offset = coalesce(told.place, d.queue_offset) FROM told \
         WHERE d.client_id = told.client_id AND d.disconnected_at < told.at"
    );
    let told: Vec<_> = departures
        .iter()
        .map(|departure| {
            let ConnectionEnd { client_id, heard } = departure;
            let place = heard.place;
            json!([
                client_id.as_str(),
                heard.at.as_microsecond(),
                place.map(|place| place.partition),
                place.map(|place| place.offset)
            ])
        })
        .collect();
    let told = json!(told).to_string();
    for statement in [REMEMBER, REMOVE, HOLD, AGAIN] {
        sqlx::query(statement)
            .bind(&told)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// The organisation, the account, and when a tenant was last looked for in vain.
fn tenant_columns(change: &TenantChange) -> (&str, &str, Option<i64>) {
    match change {
        TenantChange::Found(tenant) | TenantChange::Keep(tenant) => {
            (tenant.org_id.as_str(), &tenant.account, None)
        }
        TenantChange::NotFound(at) => ("", "", Some(at.as_microsecond())),
        // The distant past: due at once.
        TenantChange::PendingLookup => ("", "", Some(0)),
    }
}

/// Client ids as a JSON array: one parameter, however many there are.
pub(super) fn names(clients: &[ClientId]) -> String {
    let names: Vec<&str> = clients.iter().map(ClientId::as_str).collect();
    json!(names).to_string()
}
