//! Writes a batch in one transaction. Each statement has one array parameter per column.

use sqlx::{PgConnection, PgPool};
use time::OffsetDateTime;

use super::row::to_sql;
use super::{dead_letters, fencing};
use domain::{ClientId, MessageId, Tenant, Timestamp};
use store::{
    ConnectionEnd, ConnectionUpsert, HeartbeatUpdate, PartitionLease, PresenceBatch, QueuePosition,
    ReceivedAt,
};
use store::{StoreError, TenantChange, WriteOutcome};

pub(super) async fn record_batch(
    pool: &PgPool,
    batch: &PresenceBatch,
    leases: &[PartitionLease],
    now: Timestamp,
) -> Result<WriteOutcome, StoreError> {
    let mut transaction = pool.begin().await?;
    let lost_leases = fencing::find_lost_leases(&mut transaction, leases).await?;
    if !lost_leases.is_empty() {
        return Ok(WriteOutcome::Fenced(lost_leases));
    }
    if !batch.upserts.is_empty() {
        upsert_connections(&mut transaction, &batch.upserts, now).await?;
    }
    if !batch.heartbeats.is_empty() {
        apply_heartbeats(&mut transaction, &batch.heartbeats, now).await?;
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
    pool: &PgPool,
    client: &ClientId,
    time: Timestamp,
) -> Result<bool, StoreError> {
    let mut transaction = pool.begin().await?;
    let is_latest: Option<bool> = sqlx::query_scalar(
        "SELECT COALESCE(offline_received_at, online_received_at) <= $2 FROM connections
          WHERE client_id = $1 FOR UPDATE",
    )
    .bind(client.as_str())
    .bind(to_sql(time))
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
    connection: &mut PgConnection,
    upserts: &[ConnectionUpsert],
    now: Timestamp,
) -> Result<(), StoreError> {
    // Three columns of an existing row need special rules:
    // - `tenant_lookup_failure_count` is reset if the client has a tenant. For a tenantless client,
    //   only the tenantless job changes the number.
    // - `last_heartbeat_at` is kept if the stored heartbeat is later than this online message.
    // - `stale_timestamp` is kept for a tenantless client, because a tenantless client is never
    //   reported to inventory.
    const UPSERT_CONNECTIONS: &str = "
        INSERT INTO connections (client_id, org_id, account, dialect, kind, topic_prefix,
               canonical_facts, catalog_service_facts, dispatchers, tags, client_name,
               client_version, message_id, message_sent, tenant_lookup_timestamp,
               online_received_at, last_heartbeat_at, queue_partition, queue_offset,
               inventory_eligible, stale_timestamp, created_at, updated_at)
        SELECT client_id, org_id, account, dialect, kind, topic_prefix,
               canonical_facts::jsonb, catalog_service_facts::jsonb, dispatchers::jsonb,
               tags::jsonb, client_name, client_version, message_id, message_sent,
               tenant_lookup_timestamp, online_received_at, last_heartbeat_at, queue_partition,
               queue_offset, inventory_eligible, COALESCE(reported_to_inventory_at, 'epoch'),
               $22, $22
          FROM UNNEST($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
               $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::text[],
               $13::text[], $14::timestamptz[], $15::timestamptz[], $16::timestamptz[],
               $17::timestamptz[], $18::int[], $19::bigint[], $20::bool[], $21::timestamptz[])
            AS t (client_id, org_id, account, dialect, kind, topic_prefix, canonical_facts,
               catalog_service_facts, dispatchers, tags, client_name, client_version, message_id,
               message_sent, tenant_lookup_timestamp, online_received_at, last_heartbeat_at,
               queue_partition, queue_offset, inventory_eligible, reported_to_inventory_at)
        ON CONFLICT (client_id) DO UPDATE SET
               org_id = excluded.org_id, account = excluded.account, dialect = excluded.dialect,
               kind = excluded.kind, topic_prefix = excluded.topic_prefix,
               canonical_facts = excluded.canonical_facts,
               catalog_service_facts = excluded.catalog_service_facts,
               dispatchers = excluded.dispatchers,
               tags = excluded.tags, client_name = excluded.client_name,
               client_version = excluded.client_version, message_id = excluded.message_id,
               message_sent = excluded.message_sent,
               tenant_lookup_timestamp = excluded.tenant_lookup_timestamp,
               tenant_lookup_failure_count = CASE WHEN excluded.org_id <> '' THEN 0
                   ELSE COALESCE(connections.tenant_lookup_failure_count, 0) END,
               last_heartbeat_at = CASE
                   WHEN connections.last_heartbeat_at > excluded.online_received_at
                   THEN GREATEST(connections.last_heartbeat_at, excluded.last_heartbeat_at)
                   ELSE excluded.last_heartbeat_at END,
               offline_received_at = NULL,
               queue_partition = excluded.queue_partition,
               queue_offset = excluded.queue_offset,
               inventory_eligible = excluded.inventory_eligible,
               stale_timestamp = CASE WHEN excluded.org_id <> '' THEN excluded.stale_timestamp
                   ELSE connections.stale_timestamp END,
               online_received_at = excluded.online_received_at, updated_at = excluded.updated_at";
    let text_column = |column: fn(&ConnectionUpsert) -> String| -> Vec<String> {
        upserts.iter().map(column).collect()
    };
    let timestamp_column = |column: fn(&ConnectionUpsert) -> Option<Timestamp>| {
        let timestamps = upserts.iter().map(|upsert| column(upsert).map(to_sql));
        timestamps.collect::<Vec<Option<OffsetDateTime>>>()
    };
    let tenant_columns = TenantColumns::new(upserts.iter().map(|u| Some(&u.tenant)));
    let (partitions, offsets) = position_columns(upserts.iter().map(|u| u.received_at.position));
    let client_ids = text_column(|u| u.client_id.to_string());
    let inventory_eligible: Vec<bool> = upserts.iter().map(|u| u.inventory_eligible).collect();
    let message_ids: Vec<Option<&str>> = upserts
        .iter()
        .map(|u| u.message_id.as_ref().map(MessageId::as_str))
        .collect();
    sqlx::query(UPSERT_CONNECTIONS)
        .bind(&client_ids)
        .bind(&tenant_columns.org_ids)
        .bind(&tenant_columns.accounts)
        .bind(text_column(|u| u.dialect.as_str().to_owned()))
        .bind(text_column(|u| u.kind.as_str().to_owned()))
        .bind(text_column(|u| u.topic_prefix.clone()))
        .bind(text_column(|u| u.info.canonical_facts.to_string()))
        .bind(text_column(|u| u.info.catalog_service_facts.to_string()))
        .bind(text_column(|u| u.info.dispatchers.to_string()))
        .bind(text_column(|u| u.info.tags.to_string()))
        .bind(text_column(|u| u.info.client_name.clone()))
        .bind(text_column(|u| u.info.client_version.clone()))
        .bind(&message_ids)
        .bind(timestamp_column(|u| Some(u.message_sent_at)))
        .bind(&tenant_columns.lookup_timestamps)
        .bind(timestamp_column(|u| Some(u.received_at.time)))
        .bind(timestamp_column(|u| u.last_heartbeat_at))
        .bind(&partitions)
        .bind(&offsets)
        .bind(&inventory_eligible)
        .bind(timestamp_column(|u| u.reported_to_inventory_at))
        .bind(to_sql(now))
        .execute(&mut *connection)
        .await?;
    if tenant_columns.has_tenantless_client() {
        // A client that is still tenantless keeps its number of failed lookups when it reconnects.
        sqlx::query(
            "UPDATE connections AS c SET tenant_lookup_failure_count = d.tenant_lookup_failure_count
               FROM disconnected_clients AS d
              WHERE d.client_id = c.client_id AND c.org_id = '' AND c.client_id = ANY($1)",
        )
        .bind(&client_ids)
        .execute(&mut *connection)
        .await?;
    }
    sqlx::query("DELETE FROM disconnected_clients WHERE client_id = ANY($1)")
        .bind(&client_ids)
        .execute(connection)
        .await?;
    Ok(())
}

/// Applies heartbeats to connected and to disconnected clients. Runs both statements for all
/// heartbeats, because a client can have connected or disconnected after its state was loaded.
async fn apply_heartbeats(
    connection: &mut PgConnection,
    heartbeats: &[HeartbeatUpdate],
    now: Timestamp,
) -> Result<(), StoreError> {
    // The statements lock `connections` before `disconnected_clients`, like all other statements.
    // Another order could cause deadlocks.
    const RESTORE_CONNECTIONS: &str = "
        INSERT INTO connections (client_id, org_id, account, dialect, kind, topic_prefix,
               canonical_facts, catalog_service_facts, dispatchers, tags, client_name,
               client_version, message_id, message_sent, queue_partition, queue_offset,
               tenant_lookup_timestamp, tenant_lookup_failure_count, online_received_at,
               last_heartbeat_at, offline_received_at, created_at, updated_at)
        SELECT d.client_id, COALESCE(h.org_id, d.org_id), COALESCE(h.account, d.account),
               dialect, kind, topic_prefix, canonical_facts, catalog_service_facts, dispatchers,
               tags, client_name, client_version, message_id, message_sent, queue_partition,
               queue_offset,
               CASE WHEN h.org_id IS NULL THEN d.tenant_lookup_timestamp
                   ELSE h.tenant_lookup_timestamp END,
               CASE WHEN h.org_id <> '' THEN 0 ELSE d.tenant_lookup_failure_count END,
               h.received_at, h.received_at, disconnected_at, $6, $6
          FROM disconnected_clients AS d
          JOIN UNNEST($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::timestamptz[])
            AS h (client_id, received_at, org_id, account, tenant_lookup_timestamp)
            ON d.client_id = h.client_id
         WHERE d.disconnected_at < h.received_at
         ORDER BY d.client_id
        ON CONFLICT (client_id) DO NOTHING
        RETURNING client_id";
    let client_ids: Vec<&str> = heartbeats.iter().map(|h| h.client_id.as_str()).collect();
    let received_times: Vec<OffsetDateTime> =
        heartbeats.iter().map(|h| to_sql(h.received_at)).collect();
    let tenant_columns = TenantColumns::new(heartbeats.iter().map(|h| h.tenant.as_ref()));
    sqlx::query(
        "UPDATE connections AS c
            SET last_heartbeat_at = GREATEST(c.last_heartbeat_at, h.received_at)
           FROM UNNEST($1::text[], $2::timestamptz[]) AS h (client_id, received_at)
          WHERE c.client_id = h.client_id
            AND COALESCE(c.offline_received_at, c.online_received_at) < h.received_at",
    )
    .bind(&client_ids)
    .bind(&received_times)
    .execute(&mut *connection)
    .await?;
    let restored_client_ids: Vec<String> = sqlx::query_scalar(RESTORE_CONNECTIONS)
        .bind(&client_ids)
        .bind(&received_times)
        .bind(&tenant_columns.org_ids)
        .bind(&tenant_columns.accounts)
        .bind(&tenant_columns.lookup_timestamps)
        .bind(to_sql(now))
        .fetch_all(&mut *connection)
        .await?;
    if !restored_client_ids.is_empty() {
        sqlx::query("DELETE FROM disconnected_clients WHERE client_id = ANY($1)")
            .bind(&restored_client_ids)
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
    connection: &mut PgConnection,
    connection_ends: &[ConnectionEnd],
) -> Result<(), StoreError> {
    const MOVE_TO_DISCONNECTED_CLIENTS: &str = "
        WITH offline AS (
            SELECT * FROM UNNEST($1::text[], $2::timestamptz[], $3::int[], $4::bigint[])
                AS t (client_id, received_at, queue_partition, queue_offset)),
        ended AS (
            DELETE FROM connections AS c USING offline
             WHERE c.client_id = offline.client_id
               AND (c.last_heartbeat_at IS NULL OR c.last_heartbeat_at <= offline.received_at)
            RETURNING c.client_id, c.org_id, COALESCE(c.account, ''), c.dialect, c.kind,
                c.topic_prefix, c.canonical_facts, c.catalog_service_facts, c.dispatchers,
                COALESCE(c.tags, 'null'), c.client_name, c.client_version, c.message_id,
                c.message_sent, c.tenant_lookup_timestamp,
                COALESCE(c.tenant_lookup_failure_count, 0), offline.received_at,
                COALESCE(offline.queue_partition, c.queue_partition),
                COALESCE(offline.queue_offset, c.queue_offset))
        INSERT INTO disconnected_clients (client_id, org_id, account, dialect, kind, topic_prefix,
                canonical_facts, catalog_service_facts, dispatchers, tags, client_name,
                client_version, message_id, message_sent, tenant_lookup_timestamp,
                tenant_lookup_failure_count, disconnected_at, queue_partition, queue_offset)
        SELECT * FROM ended ORDER BY client_id
        ON CONFLICT (client_id) DO UPDATE SET
                org_id = excluded.org_id, account = excluded.account, dialect = excluded.dialect,
                kind = excluded.kind, topic_prefix = excluded.topic_prefix,
                canonical_facts = excluded.canonical_facts,
                catalog_service_facts = excluded.catalog_service_facts,
                dispatchers = excluded.dispatchers,
                tags = excluded.tags, client_name = excluded.client_name,
                client_version = excluded.client_version, message_id = excluded.message_id,
                message_sent = excluded.message_sent,
                tenant_lookup_timestamp = excluded.tenant_lookup_timestamp,
                tenant_lookup_failure_count = excluded.tenant_lookup_failure_count,
                disconnected_at = excluded.disconnected_at,
                queue_partition = excluded.queue_partition,
                queue_offset = excluded.queue_offset";
    const STORE_OVERRULED_OFFLINE_MESSAGES: &str = "
        UPDATE connections AS c SET offline_received_at = offline.received_at,
               queue_partition = COALESCE(offline.queue_partition, c.queue_partition),
               queue_offset = COALESCE(offline.queue_offset, c.queue_offset)
          FROM UNNEST($1::text[], $2::timestamptz[], $3::int[], $4::bigint[])
                AS offline (client_id, received_at, queue_partition, queue_offset)
         WHERE c.client_id = offline.client_id
           AND COALESCE(c.offline_received_at, c.online_received_at) < offline.received_at";
    const UPDATE_DISCONNECTED_CLIENTS: &str = "
        UPDATE disconnected_clients AS d SET disconnected_at = offline.received_at,
               queue_partition = COALESCE(offline.queue_partition, d.queue_partition),
               queue_offset = COALESCE(offline.queue_offset, d.queue_offset)
          FROM UNNEST($1::text[], $2::timestamptz[], $3::int[], $4::bigint[])
                AS offline (client_id, received_at, queue_partition, queue_offset)
         WHERE d.client_id = offline.client_id AND d.disconnected_at < offline.received_at";
    let client_ids: Vec<&str> = connection_ends
        .iter()
        .map(|end| end.client_id.as_str())
        .collect();
    let received_times: Vec<OffsetDateTime> = connection_ends
        .iter()
        .map(|end| to_sql(end.received_at.time))
        .collect();
    let (partitions, offsets) =
        position_columns(connection_ends.iter().map(|end| end.received_at.position));
    for statement in [
        MOVE_TO_DISCONNECTED_CLIENTS,
        STORE_OVERRULED_OFFLINE_MESSAGES,
        UPDATE_DISCONNECTED_CLIENTS,
    ] {
        sqlx::query(statement)
            .bind(&client_ids)
            .bind(&received_times)
            .bind(&partitions)
            .bind(&offsets)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

fn position_columns(
    positions: impl Iterator<Item = Option<QueuePosition>>,
) -> (Vec<Option<i32>>, Vec<Option<i64>>) {
    positions
        .map(|position| (position.map(|p| p.partition), position.map(|p| p.offset)))
        .unzip()
}

/// SQL parameters with the values of many tenant changes. Each field is the array of one column. If
/// the tenant of a client does not change, the client's element is null in all three arrays.
#[derive(Default)]
struct TenantColumns<'a> {
    /// Organization ids. The element of a tenantless client is an empty text.
    org_ids: Vec<Option<&'a str>>,
    accounts: Vec<Option<&'a str>>,
    /// Lookup times. The element is null for a client with a tenant.
    lookup_timestamps: Vec<Option<OffsetDateTime>>,
}

impl<'a> TenantColumns<'a> {
    fn new(changes: impl Iterator<Item = Option<&'a TenantChange>>) -> Self {
        let mut columns = Self::default();
        for change in changes {
            let (org_id, account, lookup_timestamp) = match change {
                None => (None, None, None),
                Some(TenantChange::Found(tenant) | TenantChange::Keep(tenant)) => {
                    let Tenant { org_id, account } = tenant;
                    (Some(org_id.as_str()), Some(account.as_str()), None)
                }
                Some(TenantChange::NotFound(time)) => (Some(""), Some(""), Some(to_sql(*time))),
                // If the lookup time is the Unix epoch, the client is due for a lookup immediately.
                Some(TenantChange::PendingLookup) => {
                    (Some(""), Some(""), Some(OffsetDateTime::UNIX_EPOCH))
                }
            };
            columns.org_ids.push(org_id);
            columns.accounts.push(account);
            columns.lookup_timestamps.push(lookup_timestamp);
        }
        columns
    }

    fn has_tenantless_client(&self) -> bool {
        self.org_ids.contains(&Some(""))
    }
}
