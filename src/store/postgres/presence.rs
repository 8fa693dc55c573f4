//! A batch, in one transaction: each column goes as one array.

use sqlx::{PgConnection, PgPool};
use time::OffsetDateTime;

use super::row::to_sql;
use super::{dead_letters, fencing};
use crate::domain::{MessageId, Tenant, Timestamp};
use crate::store::{
    ConnectionEnd, ConnectionUpsert, HeartbeatUpdate, PartitionLease, PresenceBatch, QueuePosition,
};
use crate::store::{StoreError, TenantChange, WriteOutcome};

pub(super) async fn record_batch(
    pool: &PgPool,
    batch: &PresenceBatch,
    fences: &[PartitionLease],
    now: Timestamp,
) -> Result<WriteOutcome, StoreError> {
    let mut transaction = pool.begin().await?;
    let lost = fencing::broken(&mut transaction, fences).await?;
    if !lost.is_empty() {
        return Ok(WriteOutcome::Fenced(lost));
    }
    if !batch.arrivals.is_empty() {
        arrive(&mut transaction, &batch.arrivals, now).await?;
    }
    if !batch.sightings.is_empty() {
        see(&mut transaction, &batch.sightings, now).await?;
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
    connection: &mut PgConnection,
    arrivals: &[ConnectionUpsert],
    now: Timestamp,
) -> Result<(), StoreError> {
    // A tenant that was found ends the count of failures; the count of a row without one is the
    // updater's to keep. A sign of life that is later than this message stays.
    const UPSERT: &str = "
        INSERT INTO connections (client_id, org_id, account, dialect, kind, topic_prefix,
               canonical_facts, catalog_service_facts, dispatchers, tags, client_name,
               client_version, message_id, message_sent, tenant_lookup_timestamp, online_received_at,
               last_heartbeat_at, queue_partition, queue_offset, inventory_eligible, stale_timestamp,
               created_at, updated_at)
        SELECT client_id, org_id, account, dialect, kind, topic_prefix,
               canonical_facts::jsonb, catalog_service_facts::jsonb, dispatchers::jsonb,
               tags::jsonb, client_name, client_version, message_id, message_sent, looked_up,
               online_received_at, last_heartbeat_at, queue_partition, queue_offset, inventory_eligible,
               COALESCE(reported_to_inventory_at, 'epoch'), $22, $22
          FROM UNNEST($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
               $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::text[],
               $13::text[], $14::timestamptz[], $15::timestamptz[], $16::timestamptz[],
               $17::timestamptz[], $18::int[], $19::bigint[], $20::bool[], $21::timestamptz[])
            AS t (client_id, org_id, account, dialect, kind, topic_prefix, canonical_facts,
               catalog_service_facts, dispatchers, tags, client_name, client_version, message_id,
               message_sent, looked_up, online_received_at, last_heartbeat_at, queue_partition, queue_offset,
               inventory_eligible, reported_to_inventory_at)
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
               last_heartbeat_at = CASE WHEN connections.last_heartbeat_at > excluded.online_received_at
                   THEN GREATEST(connections.last_heartbeat_at, excluded.last_heartbeat_at)
                   ELSE excluded.last_heartbeat_at END,
               offline_received_at = NULL,
               queue_partition = excluded.queue_partition,
               queue_offset = excluded.queue_offset,
               inventory_eligible = excluded.inventory_eligible,
               stale_timestamp = CASE WHEN excluded.org_id <> '' THEN excluded.stale_timestamp
                   ELSE connections.stale_timestamp END,
               online_received_at = excluded.online_received_at, updated_at = excluded.updated_at";
    let texts =
        |of: fn(&ConnectionUpsert) -> String| arrivals.iter().map(of).collect::<Vec<String>>();
    let moments = |of: fn(&ConnectionUpsert) -> Option<Timestamp>| {
        let moments = arrivals.iter().map(|arrival| of(arrival).map(to_sql));
        moments.collect::<Vec<Option<OffsetDateTime>>>()
    };
    let tenants = Tenants::of(arrivals.iter().map(|arrival| Some(&arrival.tenant)));
    let (partitions, offsets) = places(arrivals.iter().map(|arrival| arrival.heard.place));
    let names = texts(|a| a.client_id.to_string());
    let announceable: Vec<bool> = arrivals.iter().map(|a| a.inventory_eligible).collect();
    let message_ids: Vec<Option<&str>> = arrivals
        .iter()
        .map(|a| a.message_id.as_ref().map(MessageId::as_str))
        .collect();
    sqlx::query(UPSERT)
        .bind(&names)
        .bind(&tenants.organisations)
        .bind(&tenants.accounts)
        .bind(texts(|a| a.dialect.as_str().to_owned()))
        .bind(texts(|a| a.kind.as_str().to_owned()))
        .bind(texts(|a| a.topic_prefix.clone()))
        .bind(texts(|a| a.reported.canonical_facts.to_string()))
        .bind(texts(|a| a.reported.catalog_service_facts.to_string()))
        .bind(texts(|a| a.reported.dispatchers.to_string()))
        .bind(texts(|a| a.reported.tags.to_string()))
        .bind(texts(|a| a.reported.client_name.clone()))
        .bind(texts(|a| a.reported.client_version.clone()))
        .bind(&message_ids)
        .bind(moments(|a| Some(a.message_sent)))
        .bind(&tenants.looked_up)
        .bind(moments(|a| Some(a.heard.at)))
        .bind(moments(|a| a.last_heartbeat_at))
        .bind(&partitions)
        .bind(&offsets)
        .bind(&announceable)
        .bind(moments(|a| a.reported_to_inventory_at))
        .bind(to_sql(now))
        .execute(&mut *connection)
        .await?;
    if tenants.is_one_missing() {
        // Whoever belongs to nobody does not start over by leaving and coming back.
        sqlx::query(
            "UPDATE connections AS c SET tenant_lookup_failure_count = d.tenant_lookup_failure_count
               FROM disconnected_clients AS d
              WHERE d.client_id = c.client_id AND c.org_id = '' AND c.client_id = ANY($1)",
        )
        .bind(&names)
        .execute(&mut *connection)
        .await?;
    }
    sqlx::query("DELETE FROM disconnected_clients WHERE client_id = ANY($1)")
        .bind(&names)
        .execute(connection)
        .await?;
    Ok(())
}

/// Both for every sighting: between the question and now, the client may have come or gone.
async fn see(
    connection: &mut PgConnection,
    sightings: &[HeartbeatUpdate],
    now: Timestamp,
) -> Result<(), StoreError> {
    // First `connections`, then `departed`, as everybody else does: the other way round, two
    // processes would wait for each other.
    const RETURN: &str = "
        INSERT INTO connections (client_id, org_id, account, dialect, kind, topic_prefix,
               canonical_facts, catalog_service_facts, dispatchers, tags, client_name,
               client_version, message_id, message_sent, queue_partition, queue_offset,
               tenant_lookup_timestamp, tenant_lookup_failure_count, online_received_at, last_heartbeat_at, offline_received_at,
               created_at, updated_at)
        SELECT d.client_id, COALESCE(seen.org_id, d.org_id), COALESCE(seen.account, d.account),
               dialect, kind, topic_prefix, canonical_facts, catalog_service_facts, dispatchers,
               tags, client_name, client_version, message_id, message_sent, queue_partition,
               queue_offset,
               CASE WHEN seen.org_id IS NULL THEN tenant_lookup_timestamp ELSE seen.looked_up END,
               CASE WHEN seen.org_id <> '' THEN 0 ELSE tenant_lookup_failure_count END,
               seen.at, seen.at, disconnected_at, $6, $6
          FROM disconnected_clients AS d
          JOIN UNNEST($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::timestamptz[])
            AS seen (client_id, at, org_id, account, looked_up) ON d.client_id = seen.client_id
         WHERE d.disconnected_at < seen.at
         ORDER BY d.client_id
        ON CONFLICT (client_id) DO NOTHING
        RETURNING client_id";
    let names: Vec<&str> = sightings.iter().map(|s| s.client_id.as_str()).collect();
    let moments: Vec<OffsetDateTime> = sightings.iter().map(|s| to_sql(s.at)).collect();
    let tenants = Tenants::of(sightings.iter().map(|s| s.tenant.as_ref()));
    sqlx::query(
        "UPDATE connections AS c SET last_heartbeat_at = GREATEST(c.last_heartbeat_at, t.at)
           FROM UNNEST($1::text[], $2::timestamptz[]) AS t (client_id, at)
          WHERE c.client_id = t.client_id AND COALESCE(c.offline_received_at, c.online_received_at) < t.at",
    )
    .bind(&names)
    .bind(&moments)
    .execute(&mut *connection)
    .await?;
    let back: Vec<String> = sqlx::query_scalar(RETURN)
        .bind(&names)
        .bind(&moments)
        .bind(&tenants.organisations)
        .bind(&tenants.accounts)
        .bind(&tenants.looked_up)
        .bind(to_sql(now))
        .fetch_all(&mut *connection)
        .await?;
    if !back.is_empty() {
        sqlx::query("DELETE FROM disconnected_clients WHERE client_id = ANY($1)")
            .bind(&back)
            .execute(connection)
            .await?;
    }
    Ok(())
}

/// Whom a later sign of life holds stays, with the news; the others go; of those who had gone
/// before, the latest farewell is what counts.
async fn depart(
    connection: &mut PgConnection,
    departures: &[ConnectionEnd],
) -> Result<(), StoreError> {
    const GO: &str = "
        WITH told AS (
            SELECT * FROM UNNEST($1::text[], $2::timestamptz[], $3::int[], $4::bigint[])
                AS t (client_id, at, partition, place)),
        gone AS (
            DELETE FROM connections AS c USING told
             WHERE c.client_id = told.client_id AND (c.last_heartbeat_at IS NULL OR c.last_heartbeat_at <= told.at)
            RETURNING c.client_id, c.org_id, COALESCE(c.account, ''), c.dialect, c.kind,
                c.topic_prefix, c.canonical_facts, c.catalog_service_facts, c.dispatchers,
                COALESCE(c.tags, 'null'), c.client_name, c.client_version, c.message_id,
                c.message_sent, c.tenant_lookup_timestamp,
                COALESCE(c.tenant_lookup_failure_count, 0), told.at,
                COALESCE(told.partition, c.queue_partition), COALESCE(told.place, c.queue_offset))
        INSERT INTO disconnected_clients (client_id, org_id, account, dialect, kind, topic_prefix,
                canonical_facts, catalog_service_facts, dispatchers, tags, client_name,
                client_version, message_id, message_sent, tenant_lookup_timestamp,
                tenant_lookup_failure_count, disconnected_at, queue_partition, queue_offset)
        SELECT * FROM gone ORDER BY client_id
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
    const HOLD: &str = "
        UPDATE connections AS c SET offline_received_at = told.at,
               queue_partition = COALESCE(told.partition, c.queue_partition),
               queue_offset = COALESCE(told.place, c.queue_offset)
          FROM UNNEST($1::text[], $2::timestamptz[], $3::int[], $4::bigint[])
                AS told (client_id, at, partition, place)
         WHERE c.client_id = told.client_id AND COALESCE(c.offline_received_at, c.online_received_at) < told.at";
    const AGAIN: &str = "
        UPDATE disconnected_clients AS d SET disconnected_at = told.at,
               queue_partition = COALESCE(told.partition, d.queue_partition),
               queue_offset = COALESCE(told.place, d.queue_offset)
          FROM UNNEST($1::text[], $2::timestamptz[], $3::int[], $4::bigint[])
                AS told (client_id, at, partition, place)
         WHERE d.client_id = told.client_id AND d.disconnected_at < told.at";
    let names: Vec<&str> = departures.iter().map(|d| d.client_id.as_str()).collect();
    let moments: Vec<OffsetDateTime> = departures.iter().map(|d| to_sql(d.heard.at)).collect();
    let (partitions, offsets) = places(departures.iter().map(|d| d.heard.place));
    for statement in [GO, HOLD, AGAIN] {
        sqlx::query(statement)
            .bind(&names)
            .bind(&moments)
            .bind(&partitions)
            .bind(&offsets)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

fn places(of: impl Iterator<Item = Option<QueuePosition>>) -> (Vec<Option<i32>>, Vec<Option<i64>>) {
    of.map(|place| (place.map(|p| p.partition), place.map(|p| p.offset)))
        .unzip()
}

/// Tenants as columns: the organisation, the account, and when one was last looked for in vain. All
/// null where nothing is to change.
#[derive(Default)]
struct Tenants<'a> {
    organisations: Vec<Option<&'a str>>,
    accounts: Vec<Option<&'a str>>,
    looked_up: Vec<Option<OffsetDateTime>>,
}

impl<'a> Tenants<'a> {
    fn of(changes: impl Iterator<Item = Option<&'a TenantChange>>) -> Self {
        let mut tenants = Self::default();
        for change in changes {
            let (organisation, account, looked_up) = match change {
                None => (None, None, None),
                Some(TenantChange::Found(tenant) | TenantChange::Keep(tenant)) => {
                    let Tenant { org_id, account } = tenant;
                    (Some(org_id.as_str()), Some(account.as_str()), None)
                }
                Some(TenantChange::NotFound(at)) => (Some(""), Some(""), Some(to_sql(*at))),
                // The distant past: due at once.
                Some(TenantChange::PendingLookup) => {
                    (Some(""), Some(""), Some(OffsetDateTime::UNIX_EPOCH))
                }
            };
            tenants.organisations.push(organisation);
            tenants.accounts.push(account);
            tenants.looked_up.push(looked_up);
        }
        tenants
    }

    fn is_one_missing(&self) -> bool {
        self.organisations.contains(&Some(""))
    }
}
