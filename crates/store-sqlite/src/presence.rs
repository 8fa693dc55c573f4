//! Writes a batch in one transaction.

use const_format::concatcp;
use serde_json::json;
use sqlx::{QueryBuilder, Sqlite, SqliteConnection, SqlitePool};

use super::{dead_letters, fencing, row};
use domain::{ClientId, MessageId, Timestamp};
use store::{ConnectionEnd, ConnectionUpsert, HeartbeatUpdate, PartitionLease, PresenceBatch};
use store::{ReceivedAt, StoreError, TenantChange, WriteOutcome};

pub(super) async fn record_batch(
    pool: &SqlitePool,
    batch: &PresenceBatch,
    leases: &[PartitionLease],
    now: Timestamp,
) -> Result<WriteOutcome, StoreError> {
    // `BEGIN IMMEDIATE` acquires the write lock at the start, so no later statement of the
    // transaction can fail with SQLITE_BUSY.
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    let lost_leases = fencing::find_lost_leases(&mut transaction, leases).await?;
    if !lost_leases.is_empty() {
        return Ok(WriteOutcome::Fenced(lost_leases));
    }
    if !batch.upserts.is_empty() {
        upsert_connections(&mut transaction, &batch.upserts, now).await?;
    }
    for heartbeat in &batch.heartbeats {
        apply_heartbeat(&mut transaction, heartbeat, now).await?;
    }
    if !batch.connection_ends.is_empty() {
        end_connections(&mut transaction, &batch.connection_ends).await?;
    }
    if !batch.dead_letters.is_empty() {
        let limits = batch.dead_letter_limits;
        dead_letters::insert_dead_letters(&mut transaction, &batch.dead_letters, limits).await?;
    }
    transaction.commit().await?;
    Ok(WriteOutcome::Committed)
}

/// Ends the connection of a client, unless its latest presence message is later than `time`.
pub(super) async fn mark_disconnected(
    pool: &SqlitePool,
    client: &ClientId,
    time: Timestamp,
) -> Result<bool, StoreError> {
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    let is_latest: Option<bool> = sqlx::query_scalar(
        "SELECT coalesce(offline_received_at, online_received_at) <= ?2 FROM connections
          WHERE client_id = ?1",
    )
    .bind(client.as_str())
    .bind(time.as_microsecond())
    .fetch_optional(&mut *transaction)
    .await?;
    if is_latest != Some(true) {
        return Ok(false);
    }
    let end = ConnectionEnd {
        client_id: client.clone(),
        received_at: ReceivedAt {
            time,
            position: None,
        },
    };
    end_connections(&mut transaction, &[end]).await?;
    transaction.commit().await?;
    Ok(true)
}

async fn upsert_connections(
    connection: &mut SqliteConnection,
    upserts: &[ConnectionUpsert],
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
    insert.push_values(upserts, |mut row, upsert| {
        let (org_id, account, tenant_lookup_timestamp) = tenant_columns(&upsert.tenant);
        let info = &upsert.info;
        let position = upsert.received_at.position;
        row.push_bind(upsert.client_id.as_str())
            .push_bind(org_id)
            .push_bind(account)
            .push_bind(upsert.dialect.as_str())
            .push_bind(upsert.kind.as_str())
            .push_bind(&upsert.topic_prefix)
            .push_bind(info.canonical_facts.to_string())
            .push_bind(info.catalog_service_facts.to_string())
            .push_bind(info.dispatchers.to_string())
            .push_bind(info.tags.to_string())
            .push_bind(&info.client_name)
            .push_bind(&info.client_version)
            .push_bind(upsert.message_id.as_ref().map(MessageId::as_str))
            .push_bind(upsert.message_sent_at.as_microsecond())
            .push_bind(tenant_lookup_timestamp)
            .push_bind(upsert.received_at.time.as_microsecond())
            .push_bind(upsert.last_heartbeat_at.map(Timestamp::as_microsecond))
            .push_bind(position.map(|position| position.partition))
            .push_bind(position.map(|position| position.offset))
            .push_bind(upsert.inventory_eligible)
            .push_bind(
                upsert
                    .reported_to_inventory_at
                    .map_or(0, Timestamp::as_microsecond),
            )
            .push_bind(now)
            .push_bind(now);
    });
    // Three columns of an existing row need special rules:
    // - `tenant_lookup_failure_count` is reset if the client has a tenant. For a tenantless client,
    //   only the tenantless job changes the number.
    // - `last_heartbeat_at` is kept if the stored heartbeat is later than this online message.
    // - `stale_timestamp` is kept for a tenantless client, because a tenantless client is never
    //   reported to inventory.
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
    // The prepared statement is not cached, because the SQL text depends on the number of rows.
    insert
        .build()
        .persistent(false)
        .execute(&mut *connection)
        .await?;
    let client_ids: Vec<ClientId> = upserts.iter().map(|u| u.client_id.clone()).collect();
    let client_ids = row::client_ids_json(&client_ids);
    // A client that is still tenantless keeps its number of failed lookups when it reconnects.
    sqlx::query(
        "UPDATE connections SET tenant_lookup_failure_count = d.tenant_lookup_failure_count
           FROM disconnected_clients AS d
          WHERE d.client_id = connections.client_id AND connections.org_id = ''
            AND d.client_id IN (SELECT value FROM json_each(?))",
    )
    .bind(&client_ids)
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "DELETE FROM disconnected_clients WHERE client_id IN (SELECT value FROM json_each(?))",
    )
    .bind(&client_ids)
    .execute(connection)
    .await?;
    Ok(())
}

/// Applies one heartbeat. Separate statements for each heartbeat are fast enough: SQLite needs no
/// network round trip, and the recorder does not write most heartbeats of connected clients.
async fn apply_heartbeat(
    connection: &mut SqliteConnection,
    heartbeat: &HeartbeatUpdate,
    now: Timestamp,
) -> Result<(), StoreError> {
    let client_id = heartbeat.client_id.as_str();
    let received_at = heartbeat.received_at.as_microsecond();
    sqlx::query(
        "UPDATE connections SET last_heartbeat_at = max(coalesce(last_heartbeat_at, ?2), ?2)
          WHERE client_id = ?1 AND coalesce(offline_received_at, online_received_at) < ?2",
    )
    .bind(client_id)
    .bind(received_at)
    .execute(&mut *connection)
    .await?;
    let tenant = heartbeat.tenant.as_ref().map(tenant_columns);
    let (org_id, account, tenant_lookup_timestamp) = match tenant {
        Some((org_id, account, timestamp)) => (Some(org_id), Some(account), timestamp),
        None => (None, None, None),
    };
    let insert_result = sqlx::query(
        "INSERT INTO connections (client_id, org_id, account, dialect, kind, topic_prefix, \
         canonical_facts, catalog_service_facts, dispatchers, tags, client_name, client_version, \
         message_id, message_sent, queue_partition, queue_offset, tenant_lookup_timestamp, \
         tenant_lookup_failure_count, online_received_at, last_heartbeat_at, \
         offline_received_at, created_at, updated_at) \
         SELECT client_id, coalesce(?3, org_id), coalesce(?4, account), dialect, kind, \
         topic_prefix, canonical_facts, catalog_service_facts, dispatchers, tags, client_name, \
         client_version, message_id, message_sent, queue_partition, queue_offset, \
         CASE WHEN ?3 IS NULL THEN tenant_lookup_timestamp ELSE ?5 END, \
         CASE WHEN ?3 <> '' THEN 0 ELSE tenant_lookup_failure_count END, \
         ?2, ?2, disconnected_at, ?6, ?6 \
           FROM disconnected_clients WHERE client_id = ?1 AND disconnected_at < ?2 \
         ON CONFLICT (client_id) DO NOTHING",
    )
    .bind(client_id)
    .bind(received_at)
    .bind(org_id)
    .bind(account)
    .bind(tenant_lookup_timestamp)
    .bind(now.as_microsecond())
    .execute(&mut *connection)
    .await?;
    if insert_result.rows_affected() > 0 {
        sqlx::query("DELETE FROM disconnected_clients WHERE client_id = ?")
            .bind(client_id)
            .execute(connection)
            .await?;
    }
    Ok(())
}

/// Applies offline messages.
///
/// A client with a later heartbeat stays connected, and its row stores the receive time of the
/// offline message. If a client is already disconnected, its row stores the receive time of the
/// latest offline message.
async fn end_connections(
    connection: &mut SqliteConnection,
    connection_ends: &[ConnectionEnd],
) -> Result<(), StoreError> {
    const WITH_OFFLINE_MESSAGES: &str = "WITH offline AS (
        SELECT value ->> 0 AS client_id, value ->> 1 AS received_at,
               value ->> 2 AS queue_partition, value ->> 3 AS queue_offset
          FROM json_each(?1)) ";
    const INSERT_DISCONNECTED_CLIENTS: &str = concatcp!(
        WITH_OFFLINE_MESSAGES,
        "INSERT OR REPLACE INTO disconnected_clients (client_id, org_id, account, dialect, kind, \
         topic_prefix, canonical_facts, catalog_service_facts, dispatchers, tags, client_name, \
         client_version, message_id, message_sent, tenant_lookup_timestamp, \
         tenant_lookup_failure_count, disconnected_at, queue_partition, queue_offset) \
         SELECT c.client_id, org_id, account, dialect, kind, topic_prefix, canonical_facts, \
         catalog_service_facts, dispatchers, tags, client_name, client_version, message_id, \
         message_sent, tenant_lookup_timestamp, tenant_lookup_failure_count, \
         offline.received_at, coalesce(offline.queue_partition, c.queue_partition), \
         coalesce(offline.queue_offset, c.queue_offset) \
         FROM offline JOIN connections AS c USING (client_id) \
         WHERE c.last_heartbeat_at IS NULL OR c.last_heartbeat_at <= offline.received_at"
    );
    const DELETE_CONNECTIONS: &str = concatcp!(
        WITH_OFFLINE_MESSAGES,
        "DELETE FROM connections WHERE client_id IN ( \
         SELECT c.client_id FROM offline JOIN connections AS c USING (client_id) \
         WHERE c.last_heartbeat_at IS NULL OR c.last_heartbeat_at <= offline.received_at)"
    );
    const STORE_OVERRULED_OFFLINE_MESSAGES: &str = concatcp!(
        WITH_OFFLINE_MESSAGES,
        "UPDATE connections AS c SET offline_received_at = offline.received_at, \
         queue_partition = coalesce(offline.queue_partition, c.queue_partition), \
         queue_offset = coalesce(offline.queue_offset, c.queue_offset) FROM offline \
         WHERE c.client_id = offline.client_id \
           AND coalesce(c.offline_received_at, c.online_received_at) < offline.received_at"
    );
    const UPDATE_DISCONNECTED_CLIENTS: &str = concatcp!(
        WITH_OFFLINE_MESSAGES,
        "UPDATE disconnected_clients AS d SET disconnected_at = offline.received_at, \
         queue_partition = coalesce(offline.queue_partition, d.queue_partition), \
         queue_offset = coalesce(offline.queue_offset, d.queue_offset) FROM offline \
         WHERE d.client_id = offline.client_id AND d.disconnected_at < offline.received_at"
    );
    let offline_messages: Vec<_> = connection_ends
        .iter()
        .map(|end| {
            let position = end.received_at.position;
            json!([
                end.client_id.as_str(),
                end.received_at.time.as_microsecond(),
                position.map(|position| position.partition),
                position.map(|position| position.offset)
            ])
        })
        .collect();
    let offline_messages = json!(offline_messages).to_string();
    for statement in [
        INSERT_DISCONNECTED_CLIENTS,
        DELETE_CONNECTIONS,
        STORE_OVERRULED_OFFLINE_MESSAGES,
        UPDATE_DISCONNECTED_CLIENTS,
    ] {
        sqlx::query(statement)
            .bind(&offline_messages)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Returns the values of the columns `org_id`, `account` and `tenant_lookup_timestamp`.
fn tenant_columns(change: &TenantChange) -> (&str, &str, Option<i64>) {
    match change {
        TenantChange::Found(tenant) | TenantChange::Keep(tenant) => {
            (tenant.org_id.as_str(), &tenant.account, None)
        }
        TenantChange::NotFound(time) => ("", "", Some(time.as_microsecond())),
        // If the lookup time is the Unix epoch, the client is due for a lookup immediately.
        TenantChange::PendingLookup => ("", "", Some(0)),
    }
}
