//! The transaction that writes a batch. Each statement has one array parameter per column.
//!
//! Statements lock `connections` before `disconnected_clients`, and rows in the order of their
//! client ids. Another order could cause deadlocks.

use async_trait::async_trait;
use const_format::concatcp;
use time::OffsetDateTime;

use crate::answers;
use crate::driver::{self, PgQuery, Row, pg_query, set_based, timestamptz};
use crate::guarded_pool::GuardedConnection;
use crate::history::{self, WRITE_EVENTS, WRITE_HISTORY};
use crate::upsert::{self, UPSERT_CONNECTIONS};
use domain::Timestamp;
use store::sql::{
    ColumnReader as _, HEARTBEAT_STAMP_COLUMNS, ONLINE_MESSAGE_COLUMNS, PRESENCE_COLUMNS,
    PRESENCE_STAMP_COLUMNS, Query, REPLACE_ONLINE_MESSAGE, REPLACE_PRESENCE_COLUMNS,
    REPLACE_PRESENCE_STAMP, SqlTransaction, Statement, TenantColumns,
};
use store::{
    ConnectionEnd, ConnectionUpsert, DeadLetter, DeliveredReport, HeartbeatUpdate, HistoryRow,
    LastSeen, MessageAnswer, NewEvent, PartitionLease, ReceivedAt, Result, latest_transition,
    received_after,
};

/// Receive time of the latest presence message of a connected client.
const PRESENCE_TIME: &str = "COALESCE(c.offline_received_at, c.online_received_at)";

/// The offline messages in the parameters `$1` to `$9`.
const OFFLINE_MESSAGES: &str = "UNNEST($1::text[], $2::timestamptz[], $3::bigint[], $4::int[],
               $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::text[])
            AS offline (client_id, received_at, queue_topic, queue_partition, queue_offset, session,
               epoch, sequence, reason)";

store::statements! {
    /// Locks the rows of the partitions in share mode until the end of the transaction. A process
    /// that acquires one of these partitions waits for the transaction. If another process is
    /// already acquiring one of these partitions, the query waits for that process.
    LOCK_PARTITIONS = "
        SELECT queue, partition, epoch FROM partition_epoch
         WHERE (queue, partition) IN (SELECT * FROM UNNEST($1::text[], $2::int[]))
         ORDER BY queue, partition FOR SHARE";

    UPDATE_HEARTBEATS = concatcp!("
        UPDATE connections AS c
           SET last_seen = GREATEST(c.last_seen, h.received_at),
               last_heartbeat_at = h.received_at, heartbeat_session = h.session,
               heartbeat_epoch = h.epoch, heartbeat_sequence = h.sequence
          FROM UNNEST($1::text[], $2::timestamptz[], $3::bigint[], $4::bigint[], $5::bigint[])
            AS h (client_id, received_at, session, epoch, sequence)
         WHERE c.client_id = h.client_id
           AND ", received_after!("h.", "h.received_at"; "c.presence_", PRESENCE_TIME), "
           AND (c.last_heartbeat_at IS NULL
               OR ", received_after!("h.", "h.received_at";
                   "c.heartbeat_", "c.last_heartbeat_at"), ")");

    /// The batch does not contain the facts of these clients, so the trigger writes the search index.
    RESTORE_CONNECTIONS = concatcp!("
        INSERT INTO connections (client_id, org_id, account, tags, ", ONLINE_MESSAGE_COLUMNS, ",
               queue_topic, queue_partition, queue_offset, tenant_lookup_timestamp,
               tenant_lookup_failure_count, online_received_at, last_heartbeat_at,
               offline_received_at, ", PRESENCE_STAMP_COLUMNS, ", ", HEARTBEAT_STAMP_COLUMNS, ",
               ", PRESENCE_COLUMNS, ", created_at, updated_at)
        SELECT d.client_id, COALESCE(h.org_id, d.org_id), COALESCE(h.account, d.account), tags, ",
               ONLINE_MESSAGE_COLUMNS, ", queue_topic, queue_partition, queue_offset,
               CASE WHEN h.org_id IS NULL THEN d.tenant_lookup_timestamp
                   ELSE h.tenant_lookup_timestamp END,
               CASE WHEN h.org_id <> '' THEN 0 ELSE d.tenant_lookup_failure_count END,
               h.received_at, h.received_at, disconnected_at, ", PRESENCE_STAMP_COLUMNS, ",
               h.session, h.epoch, h.sequence, h.received_at, h.received_at,
               CASE WHEN h.org_id <> d.org_id THEN 0 ELSE d.reconnects + 1 END,
               CASE WHEN d.hourly_reconnects_since > h.received_at - interval '1 hour'
                   THEN d.hourly_reconnects + 1 ELSE 1 END,
               CASE WHEN d.hourly_reconnects_since > h.received_at - interval '1 hour'
                   THEN d.hourly_reconnects_since ELSE h.received_at END,
               ", latest_transition!("d."), " + 1, d.content_hashes, $9, $9
          FROM disconnected_clients AS d
          JOIN UNNEST($1::text[], $2::timestamptz[], $3::bigint[], $4::bigint[], $5::bigint[],
               $6::text[], $7::text[], $8::timestamptz[])
            AS h (client_id, received_at, session, epoch, sequence, org_id, account,
               tenant_lookup_timestamp)
            ON d.client_id = h.client_id
         CROSS JOIN set_config('cc.recorder', 'off', true)
         WHERE ", received_after!("h.", "h.received_at"; "d.presence_", "d.disconnected_at"), "
         ORDER BY d.client_id
        ON CONFLICT (client_id) DO NOTHING
        RETURNING client_id, org_id, account, tags, ", ONLINE_MESSAGE_COLUMNS, ", connected_since,
               transition_count");

    DELETE_DISCONNECTS = "DELETE FROM disconnected_clients WHERE client_id = ANY($1)";

    MOVE_TO_DISCONNECTED_CLIENTS = concatcp!("
        WITH ended AS (
            DELETE FROM connections AS c USING ", OFFLINE_MESSAGES, "
             WHERE c.client_id = offline.client_id
               AND (c.last_heartbeat_at IS NULL
                   OR NOT ", received_after!("c.heartbeat_", "c.last_heartbeat_at";
                       "offline.", "offline.received_at"), ")
            RETURNING c.client_id, org_id, COALESCE(account, ''), COALESCE(tags, 'null'), ",
                ONLINE_MESSAGE_COLUMNS, ", tenant_lookup_timestamp,
                COALESCE(tenant_lookup_failure_count, 0), offline.received_at,
                COALESCE(offline.queue_topic, c.queue_topic),
                COALESCE(offline.queue_partition, c.queue_partition),
                COALESCE(offline.queue_offset, c.queue_offset), offline.session, offline.epoch,
                offline.sequence, COALESCE(c.connected_since, c.online_received_at),
                CASE WHEN offline.reason = 'client' THEN offline.received_at
                    ELSE COALESCE(c.last_seen, c.last_heartbeat_at, c.online_received_at) END,
                c.reconnects, c.hourly_reconnects, c.hourly_reconnects_since,
                ", latest_transition!("c."), " + 1, c.content_hashes, offline.reason)
        INSERT INTO disconnected_clients (client_id, org_id, account, tags, ",
                ONLINE_MESSAGE_COLUMNS, ", tenant_lookup_timestamp, tenant_lookup_failure_count,
                disconnected_at, queue_topic, queue_partition, queue_offset, ", PRESENCE_STAMP_COLUMNS, ",
                ", PRESENCE_COLUMNS, ", reason)
        SELECT * FROM ended ORDER BY client_id
        ON CONFLICT (client_id) DO UPDATE SET ", REPLACE_ONLINE_MESSAGE, ",
                org_id = excluded.org_id, account = excluded.account,
                tenant_lookup_timestamp = excluded.tenant_lookup_timestamp,
                tenant_lookup_failure_count = excluded.tenant_lookup_failure_count,
                disconnected_at = excluded.disconnected_at,
                queue_topic = excluded.queue_topic,
                queue_partition = excluded.queue_partition,
                queue_offset = excluded.queue_offset, ", REPLACE_PRESENCE_STAMP, ",
                ", REPLACE_PRESENCE_COLUMNS, ", reason = excluded.reason
        RETURNING client_id, org_id, account, dispatchers, connected_since, disconnected_at,
                transition_count");

    STORE_OVERRULED_OFFLINE_MESSAGES = concatcp!("
        UPDATE connections AS c SET offline_received_at = offline.received_at,
               queue_topic = COALESCE(offline.queue_topic, c.queue_topic),
               queue_partition = COALESCE(offline.queue_partition, c.queue_partition),
               queue_offset = COALESCE(offline.queue_offset, c.queue_offset),
               presence_session = offline.session, presence_epoch = offline.epoch,
               presence_sequence = offline.sequence
          FROM ", OFFLINE_MESSAGES, "
         WHERE c.client_id = offline.client_id
           AND ", received_after!("offline.", "offline.received_at";
               "c.presence_", PRESENCE_TIME));

    UPDATE_DISCONNECTED_CLIENTS = concatcp!("
        UPDATE disconnected_clients AS d SET disconnected_at = offline.received_at,
               queue_topic = COALESCE(offline.queue_topic, d.queue_topic),
               queue_partition = COALESCE(offline.queue_partition, d.queue_partition),
               queue_offset = COALESCE(offline.queue_offset, d.queue_offset),
               presence_session = offline.session, presence_epoch = offline.epoch,
               presence_sequence = offline.sequence
          FROM ", OFFLINE_MESSAGES, "
         WHERE d.client_id = offline.client_id
           AND ", received_after!("offline.", "offline.received_at";
               "d.presence_", "d.disconnected_at"));

    WRITE_LAST_SEEN = "
        UPDATE connections AS c SET last_seen = s.at
          FROM UNNEST($1::text[], $2::timestamptz[]) AS s (client_id, at)
         WHERE c.client_id = s.client_id AND (c.last_seen IS NULL OR c.last_seen < s.at)";

    INSERT_DEAD_LETTERS = "
        INSERT INTO dead_letters (client_id, fingerprint, topic, payload, size, sha256, reason,
               detail, first_received, last_received)
        SELECT *, received FROM UNNEST($1::text[], $2::text[], $3::text[], $4::bytea[],
               $5::bigint[], $6::text[], $7::text[], $8::text[], $9::timestamptz[])
            AS t (client_id, fingerprint, topic, payload, size, sha256, reason, detail, received)
        ON CONFLICT (client_id, fingerprint) DO UPDATE SET
               reason = excluded.reason, detail = excluded.detail,
               occurrences = dead_letters.occurrences + 1,
               last_received = excluded.last_received, replay_requested_at = NULL";

    STORE_DELIVERED_REPORTS = "
        UPDATE connections AS c SET stale_timestamp = r.reported_at
          FROM (SELECT c.client_id, d.reported_at
                  FROM UNNEST($1::text[], $2::timestamptz[], $3::timestamptz[], $4::timestamptz[])
                    AS d (client_id, row_version, online_received_at, reported_at)
                  JOIN connections AS c
                    ON c.client_id = d.client_id AND c.updated_at = d.row_version
                   AND c.online_received_at = d.online_received_at
                   FOR UPDATE OF c SKIP LOCKED) AS r
         WHERE c.client_id = r.client_id";
}

/// An open transaction.
pub struct PostgresTransaction(pub(crate) GuardedConnection);

impl PostgresTransaction {
    async fn run(&mut self, query: PgQuery) -> Result<u64> {
        driver::execute(&mut self.0, query).await
    }
}

#[async_trait]
impl SqlTransaction for PostgresTransaction {
    type Row = Row;

    async fn fetch_all(&mut self, query: Query<'_>) -> Result<Vec<Row>> {
        driver::fetch_all(&mut self.0, pg_query(&query)).await
    }

    async fn execute(&mut self, query: Query<'_>) -> Result<u64> {
        self.run(pg_query(&query)).await
    }

    async fn lock_partitions(&mut self, leases: &[PartitionLease]) -> Result<Vec<Row>> {
        let query = set_based(LOCK_PARTITIONS)
            .bind(column(leases, |lease| lease.queue.as_str()))
            .bind(column(leases, |lease| lease.partition));
        driver::fetch_all(&mut self.0, query).await
    }

    /// The statement of [`Self::write_upserts`] checks the rows.
    async fn has_outdated_rows(&mut self, _: &[ConnectionUpsert]) -> Result<bool> {
        Ok(false)
    }

    async fn write_upserts(
        &mut self,
        rows: &[ConnectionUpsert],
        history: &[HistoryRow],
        events: &[NewEvent],
        now: Timestamp,
    ) -> Result<()> {
        let query = set_based(UPSERT_CONNECTIONS);
        let query = upsert::bind_upserts(query, rows, history, events, now);
        driver::fetch_all(&mut self.0, query).await.map(drop)
    }

    async fn write_heartbeats(
        &mut self,
        rows: &[HeartbeatUpdate],
        now: Timestamp,
    ) -> Result<Vec<Row>> {
        let client_ids = column(rows, |h| h.client_id.as_str());
        let received_times = column(rows, |h| timestamptz(h.received_at.time));
        let with_heartbeats = |statement: Statement| {
            let query = set_based(statement).bind(&client_ids).bind(&received_times);
            bind_stamps(query, rows, |h| Some(h.received_at))
        };
        self.run(with_heartbeats(UPDATE_HEARTBEATS)).await?;
        // All three elements are null if the tenant of the client does not change.
        let tenants = column(rows, |h| h.tenant.as_ref().map(TenantColumns::from));
        let lookup_times = column(&tenants, |t| t.and_then(|t| t.lookup_timestamp));
        let restore = with_heartbeats(RESTORE_CONNECTIONS)
            .bind(column(&tenants, |t| t.map(|t| t.org_id)))
            .bind(column(&tenants, |t| t.map(|t| t.account)))
            .bind(column(&lookup_times, |time| time.map(timestamptz)))
            .bind(timestamptz(now));
        let restored_rows = driver::fetch_all(&mut self.0, restore).await?;
        let restored_client_ids = restored_rows.iter().map(|row| row.text("client_id"));
        let restored_client_ids = restored_client_ids.collect::<Result<Vec<String>>>()?;
        if !restored_client_ids.is_empty() {
            let query = set_based(DELETE_DISCONNECTS).bind(restored_client_ids);
            self.run(query).await?;
        }
        Ok(restored_rows)
    }

    async fn write_last_seen(&mut self, rows: &[LastSeen]) -> Result<()> {
        let query = set_based(WRITE_LAST_SEEN)
            .bind(column(rows, |seen| seen.client_id.as_str()))
            .bind(column(rows, |seen| timestamptz(seen.at)));
        self.run(query).await.map(drop)
    }

    async fn write_history(&mut self, rows: &[HistoryRow]) -> Result<()> {
        let query = history::bind_history(set_based(WRITE_HISTORY), rows);
        self.run(query).await.map(drop)
    }

    async fn write_events(&mut self, rows: &[NewEvent]) -> Result<()> {
        let query = history::bind_events(set_based(WRITE_EVENTS), rows);
        self.run(query).await.map(drop)
    }

    async fn write_answers(&mut self, rows: &[MessageAnswer]) -> Result<Vec<Row>> {
        driver::fetch_all(&mut self.0, answers::write_answers(rows)).await
    }

    async fn write_connection_ends(&mut self, rows: &[ConnectionEnd]) -> Result<Vec<Row>> {
        let with_columns = |statement: Statement| {
            let query = set_based(statement)
                .bind(column(rows, |end| end.client_id.as_str()))
                .bind(column(rows, |end| timestamptz(end.received_at.time)))
                .bind(column(rows, |end| end.received_at.topic()))
                .bind(column(rows, |end| end.received_at.partition()))
                .bind(column(rows, |end| end.received_at.offset()));
            bind_stamps(query, rows, |end| Some(end.received_at))
                .bind(column(rows, |end| end.reason.as_str()))
        };
        let move_rows = with_columns(MOVE_TO_DISCONNECTED_CLIENTS);
        let ended_connections = driver::fetch_all(&mut self.0, move_rows).await?;
        self.run(with_columns(STORE_OVERRULED_OFFLINE_MESSAGES))
            .await?;
        self.run(with_columns(UPDATE_DISCONNECTED_CLIENTS)).await?;
        Ok(ended_connections)
    }

    async fn write_dead_letters(&mut self, rows: &[DeadLetter]) -> Result<()> {
        let size = |d: &DeadLetter| i64::try_from(d.payload_size).unwrap_or(i64::MAX);
        let received_times: Vec<OffsetDateTime> = column(rows, |d| timestamptz(d.received_at));
        let query = set_based(INSERT_DEAD_LETTERS)
            .bind(column(rows, DeadLetter::client_id_column))
            .bind(column(rows, DeadLetter::fingerprint))
            .bind(column(rows, |d| d.topic.as_str()))
            .bind(column(rows, |d| &d.payload[..]))
            .bind(column(rows, size))
            .bind(column(rows, |d| d.sha256.as_str()))
            .bind(column(rows, |d| d.reason.as_str()))
            .bind(column(rows, |d| d.detail.as_str()))
            .bind(received_times);
        self.run(query).await.map(drop)
    }

    async fn write_delivered_reports(&mut self, rows: &[DeliveredReport]) -> Result<()> {
        let query = set_based(STORE_DELIVERED_REPORTS)
            .bind(column(rows, |r| r.client_id.as_str()))
            .bind(column(rows, |r| timestamptz(r.row_version)))
            .bind(column(rows, |r| timestamptz(r.online_received_at)))
            .bind(column(rows, |r| timestamptz(r.reported_at)));
        self.run(query).await.map(drop)
    }

    async fn commit(self) -> Result<()> {
        self.0.commit().await
    }
}

/// Binds the session, the epoch and the sequence of each message as three array parameters.
pub(crate) fn bind_stamps<R>(
    query: PgQuery,
    rows: &[R],
    received_at: impl Fn(&R) -> Option<ReceivedAt>,
) -> PgQuery {
    let stamps = column(rows, |row| received_at(row).and_then(|it| it.stamp));
    query
        .bind(column(&stamps, |stamp| stamp.map(|it| it.session)))
        .bind(column(&stamps, |stamp| stamp.map(|it| it.epoch)))
        .bind(column(&stamps, |stamp| stamp.map(|it| it.sequence)))
}

/// Returns the array parameter with the values of one column.
pub(crate) fn column<'a, R, T>(rows: &'a [R], value: impl Fn(&'a R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}
