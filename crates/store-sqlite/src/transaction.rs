//! The transaction that writes a batch.

use std::collections::HashMap;

use async_trait::async_trait;
use const_format::concatcp;
use serde_json::json;

use crate::answers::{self, WRITE_ANSWERS};
use crate::database_files::DatabaseFiles;
use crate::driver::{Row, sqlite_query};
use crate::guarded_connection::GuardedConnection;
use crate::history::{self, PREVIOUS_DISPATCHERS, WRITE_EVENTS, WRITE_HISTORY};
use crate::inserts::{self, Updates};
use crate::search_signature::SIGNATURE_COLUMN_LIST;
use domain::Timestamp;
use store::sql::{
    ColumnReader as _, HEARTBEAT_STAMP_COLUMNS, ONLINE_MESSAGE_COLUMNS, PRESENCE_COLUMNS,
    PRESENCE_STAMP_COLUMNS, Query, SqlTransaction, TenantColumns,
};
use store::{
    ConnectionEnd, ConnectionUpsert, DeadLetter, DeliveredReport, HeartbeatUpdate, HistoryRow,
    LastSeen, MessageAnswer, NewEvent, PartitionLease, ReceivedAt, ReplacedRow, Result,
    latest_transition, received_after,
};

/// The offline messages in the parameter `$1`, a JSON array of arrays.
const WITH_OFFLINE_MESSAGES: &str = "WITH offline AS (
    SELECT value ->> 0 AS client_id, value ->> 1 AS received_at,
           value ->> 2 AS queue_topic, value ->> 3 AS queue_partition,
           value ->> 4 AS queue_offset, value ->> 5 AS session, value ->> 6 AS epoch,
           value ->> 7 AS sequence, value ->> 8 AS reason
      FROM json_each($1)) ";

/// The heartbeat in the parameters `$2` to `$5`.
const HEARTBEAT: &str =
    "(SELECT $2 AS received_at, $3 AS session, $4 AS epoch, $5 AS sequence) AS h";

/// Receive time of the latest presence message of a connected client.
const PRESENCE_TIME: &str = "coalesce(c.offline_received_at, c.online_received_at)";

/// Condition that an offline message ends a connection.
const ENDS_CONNECTION: &str = concatcp!(
    "c.last_heartbeat_at IS NULL OR NOT ",
    received_after!("c.heartbeat_", "c.last_heartbeat_at"; "offline.", "offline.received_at")
);

/// Assignments that store the ingest stamp of an offline message.
const STORE_OFFLINE_STAMP: &str = "presence_session = offline.session, \
     presence_epoch = offline.epoch, presence_sequence = offline.sequence";

store::statements! {
    ALL_PARTITIONS = "SELECT queue, partition, epoch FROM partition_epoch";

    UPDATE_HEARTBEAT = concatcp!(
        "UPDATE connections AS c SET last_heartbeat_at = h.received_at, \
         last_seen = max(coalesce(c.last_seen, 0), h.received_at), \
         heartbeat_session = h.session, heartbeat_epoch = h.epoch, \
         heartbeat_sequence = h.sequence FROM ",
        HEARTBEAT,
        " WHERE c.client_id = $1 AND ",
        received_after!("h.", "h.received_at"; "c.presence_", PRESENCE_TIME),
        " AND (c.last_heartbeat_at IS NULL OR ",
        received_after!("h.", "h.received_at"; "c.heartbeat_", "c.last_heartbeat_at"),
        ")"
    );

    RESTORE_CONNECTION = concatcp!(
        "INSERT INTO connections (client_id, org_id, account, tags, ",
        SIGNATURE_COLUMN_LIST,
        ", ",
        ONLINE_MESSAGE_COLUMNS,
        ", queue_topic, queue_partition, queue_offset, tenant_lookup_timestamp, \
         tenant_lookup_failure_count, online_received_at, last_heartbeat_at, \
         offline_received_at, created_at, updated_at, ",
        PRESENCE_STAMP_COLUMNS,
        ", ",
        HEARTBEAT_STAMP_COLUMNS,
        ", ",
        PRESENCE_COLUMNS,
        ") SELECT client_id, coalesce($6, org_id), coalesce($7, account), tags, ",
        SIGNATURE_COLUMN_LIST,
        ", ",
        ONLINE_MESSAGE_COLUMNS,
        ", queue_topic, queue_partition, queue_offset, \
         CASE WHEN $6 IS NULL THEN tenant_lookup_timestamp ELSE $8 END, \
         CASE WHEN $6 <> '' THEN 0 ELSE tenant_lookup_failure_count END, \
         h.received_at, h.received_at, disconnected_at, $9, $9, ",
        PRESENCE_STAMP_COLUMNS,
        ", h.session, h.epoch, h.sequence, h.received_at, h.received_at, \
         CASE WHEN $6 <> org_id THEN 0 ELSE reconnects + 1 END, \
         CASE WHEN hourly_reconnects_since > h.received_at - 3600000000 \
         THEN hourly_reconnects + 1 ELSE 1 END, \
         CASE WHEN hourly_reconnects_since > h.received_at - 3600000000 \
         THEN hourly_reconnects_since ELSE h.received_at END, \
         ",
        latest_transition!("d."),
        " + 1, content_hashes FROM disconnected_clients AS d, ",
        HEARTBEAT,
        " WHERE client_id = $1 AND ",
        received_after!("h.", "h.received_at"; "d.presence_", "d.disconnected_at"),
        " ON CONFLICT (client_id) DO NOTHING RETURNING client_id, org_id, account, tags, ",
        ONLINE_MESSAGE_COLUMNS,
        ", connected_since, transition_count"
    );

    DELETE_DISCONNECT = "DELETE FROM disconnected_clients WHERE client_id = $1";

    INSERT_DISCONNECTED_CLIENTS = concatcp!(
        WITH_OFFLINE_MESSAGES,
        "INSERT OR REPLACE INTO disconnected_clients (client_id, org_id, account, tags, ",
        SIGNATURE_COLUMN_LIST,
        ", ",
        ONLINE_MESSAGE_COLUMNS,
        ", tenant_lookup_timestamp, tenant_lookup_failure_count, disconnected_at, \
         queue_topic, queue_partition, queue_offset, ",
        PRESENCE_STAMP_COLUMNS,
        ", ",
        PRESENCE_COLUMNS,
        ", reason) SELECT c.client_id, org_id, account, tags, ",
        SIGNATURE_COLUMN_LIST,
        ", ",
        ONLINE_MESSAGE_COLUMNS,
        ", tenant_lookup_timestamp, tenant_lookup_failure_count, \
         offline.received_at, coalesce(offline.queue_topic, c.queue_topic), \
         coalesce(offline.queue_partition, c.queue_partition), \
         coalesce(offline.queue_offset, c.queue_offset), offline.session, offline.epoch, \
         offline.sequence, coalesce(c.connected_since, c.online_received_at), \
         CASE WHEN offline.reason = 'client' THEN offline.received_at \
         ELSE coalesce(c.last_seen, c.last_heartbeat_at, c.online_received_at) END, \
         c.reconnects, c.hourly_reconnects, c.hourly_reconnects_since, ",
        latest_transition!("c."),
        " + 1, \
         c.content_hashes, offline.reason \
         FROM offline JOIN connections AS c USING (client_id) WHERE ",
        ENDS_CONNECTION,
        " RETURNING client_id, org_id, account, dispatchers, connected_since, disconnected_at, \
         transition_count"
    );

    DELETE_CONNECTIONS = concatcp!(
        WITH_OFFLINE_MESSAGES,
        "DELETE FROM connections WHERE client_id IN ( \
         SELECT c.client_id FROM offline JOIN connections AS c USING (client_id) WHERE ",
        ENDS_CONNECTION,
        ")"
    );

    STORE_OVERRULED_OFFLINE_MESSAGES = concatcp!(
        WITH_OFFLINE_MESSAGES,
        "UPDATE connections AS c SET offline_received_at = offline.received_at, \
         queue_topic = coalesce(offline.queue_topic, c.queue_topic), \
         queue_partition = coalesce(offline.queue_partition, c.queue_partition), \
         queue_offset = coalesce(offline.queue_offset, c.queue_offset), ",
        STORE_OFFLINE_STAMP,
        " FROM offline WHERE c.client_id = offline.client_id AND ",
        received_after!("offline.", "offline.received_at"; "c.presence_", PRESENCE_TIME)
    );

    UPDATE_DISCONNECTED_CLIENTS = concatcp!(
        WITH_OFFLINE_MESSAGES,
        "UPDATE disconnected_clients AS d SET disconnected_at = offline.received_at, \
         queue_topic = coalesce(offline.queue_topic, d.queue_topic), \
         queue_partition = coalesce(offline.queue_partition, d.queue_partition), \
         queue_offset = coalesce(offline.queue_offset, d.queue_offset), ",
        STORE_OFFLINE_STAMP,
        " FROM offline WHERE d.client_id = offline.client_id AND ",
        received_after!("offline.", "offline.received_at"; "d.presence_", "d.disconnected_at")
    );

    WRITE_LAST_SEEN = "WITH seen AS (
            SELECT value ->> 0 AS client_id, value ->> 1 AS at FROM json_each($1))
        UPDATE connections AS c SET last_seen = seen.at FROM seen
         WHERE c.client_id = seen.client_id AND (c.last_seen IS NULL OR c.last_seen < seen.at)";

    ROW_VERSIONS = "SELECT client_id, updated_at FROM connections
         WHERE client_id IN (SELECT value FROM json_each($1))";

    STORE_DELIVERED_REPORTS = "WITH delivered AS (
            SELECT value ->> 0 AS client_id, value ->> 1 AS row_version,
                   value ->> 2 AS online_received_at, value ->> 3 AS reported_at
              FROM json_each($1))
        UPDATE connections AS c SET stale_timestamp = d.reported_at FROM delivered AS d
         WHERE c.client_id = d.client_id AND c.updated_at = d.row_version
           AND c.online_received_at = d.online_received_at";
}

/// An open transaction.
pub struct SqliteTransaction {
    pub(crate) connection: GuardedConnection,
    pub(crate) files: DatabaseFiles,
}

impl SqliteTransaction {
    /// Returns the stored dispatchers of the clients whose dispatchers change, as JSON.
    async fn previous_dispatchers(
        &mut self,
        events: &[NewEvent],
    ) -> Result<HashMap<String, String>> {
        let changed = events.iter().filter(|event| event.dispatchers_changed);
        let client_ids: Vec<&str> = changed.map(|event| event.client_id.as_str()).collect();
        if client_ids.is_empty() {
            return Ok(HashMap::new());
        }
        let client_ids = json!(client_ids).to_string();
        let query = PREVIOUS_DISPATCHERS.with([client_ids.as_str().into()]);
        let rows = self.fetch_all(query).await?;
        let previous = |row: &Row| Ok((row.text("client_id")?, row.text("dispatchers")?));
        rows.iter().map(previous).collect()
    }

    /// Inserts the new rows of a chunk, and updates some of the other rows. Returns the number of both.
    async fn upsert_chunk(
        &mut self,
        chunk: &[ConnectionUpsert],
        now: Timestamp,
        updates: Updates,
    ) -> Result<u64> {
        let insert = sqlite_query(&inserts::insert_connections(chunk.len(), updates));
        let insert = chunk.iter().fold(insert, |insert, row| {
            inserts::bind_connection(insert, row, now)
        });
        self.connection.execute(insert).await
    }
}

#[async_trait]
impl SqlTransaction for SqliteTransaction {
    type Row = Row;

    async fn fetch_all(&mut self, query: Query<'_>) -> Result<Vec<Row>> {
        self.connection.fetch_all(sqlite_query(&query)).await
    }

    async fn execute(&mut self, query: Query<'_>) -> Result<u64> {
        self.connection.execute(sqlite_query(&query)).await
    }

    /// Reads all partitions, because there are few. The transaction already prevents other
    /// processes from writing.
    async fn lock_partitions(&mut self, _: &[PartitionLease]) -> Result<Vec<Row>> {
        self.fetch_all(ALL_PARTITIONS.with([])).await
    }

    async fn has_outdated_rows(&mut self, rows: &[ConnectionUpsert]) -> Result<bool> {
        let client_ids: Vec<&str> = rows.iter().map(|row| row.client_id.as_str()).collect();
        let client_ids = json!(client_ids).to_string();
        let query = ROW_VERSIONS.with([client_ids.as_str().into()]);
        let mut versions = HashMap::with_capacity(rows.len());
        for row in self.fetch_all(query).await? {
            versions.insert(row.text("client_id")?, row.timestamp("updated_at")?);
        }
        Ok(rows.iter().any(|row| {
            let version = versions.get(row.client_id.as_str());
            match row.replaced {
                ReplacedRow::Any => false,
                ReplacedRow::Absent => version.is_some(),
                ReplacedRow::Version(replaced) => version != Some(&replaced.updated_at),
            }
        }))
    }

    async fn write_upserts(
        &mut self,
        rows: &[ConnectionUpsert],
        history: &[HistoryRow],
        events: &[NewEvent],
        now: Timestamp,
    ) -> Result<()> {
        // The upserts replace the dispatchers that the events need.
        let previous_dispatchers = self.previous_dispatchers(events).await?;
        let mut expects_changes = false;
        for chunk in inserts::chunks(rows) {
            if expects_changes {
                self.upsert_chunk(chunk, now, Updates::All).await?;
                continue;
            }
            let written = self.upsert_chunk(chunk, now, Updates::SameInIndex).await?;
            let chunk_length = chunk.len() as u64;
            if written < chunk_length {
                self.upsert_chunk(chunk, now, Updates::ChangedInIndex)
                    .await?;
            }
            expects_changes = written < chunk_length / 2;
        }
        if !history.is_empty() {
            self.write_history(history).await?;
        }
        if !events.is_empty() {
            let events = history::events_parameter(events, &previous_dispatchers);
            self.execute(WRITE_EVENTS.with([events.as_str().into()]))
                .await?;
        }
        Ok(())
    }

    /// Separate statements for each heartbeat are fast enough: SQLite needs no network round trip,
    /// and the recorder does not write most heartbeats of connected clients.
    async fn write_heartbeats(
        &mut self,
        rows: &[HeartbeatUpdate],
        now: Timestamp,
    ) -> Result<Vec<Row>> {
        let mut restored = Vec::new();
        for heartbeat in rows {
            let HeartbeatUpdate {
                client_id,
                received_at,
                tenant,
            } = heartbeat;
            let [session, epoch, sequence] = stamp_columns(Some(*received_at));
            let update = UPDATE_HEARTBEAT.with([
                client_id.into(),
                received_at.time.into(),
                session.into(),
                epoch.into(),
                sequence.into(),
            ]);
            self.execute(update).await?;
            let tenant = tenant.as_ref().map(TenantColumns::from);
            let restore = RESTORE_CONNECTION.with([
                client_id.into(),
                received_at.time.into(),
                session.into(),
                epoch.into(),
                sequence.into(),
                tenant.map(|tenant| tenant.org_id).into(),
                tenant.map(|tenant| tenant.account).into(),
                tenant.and_then(|tenant| tenant.lookup_timestamp).into(),
                now.into(),
            ]);
            let restored_rows = self.fetch_all(restore).await?;
            if !restored_rows.is_empty() {
                let delete = DELETE_DISCONNECT.with([client_id.into()]);
                self.execute(delete).await?;
            }
            restored.extend(restored_rows);
        }
        Ok(restored)
    }

    async fn write_last_seen(&mut self, rows: &[LastSeen]) -> Result<()> {
        let seen = |row: &LastSeen| json!([row.client_id.as_str(), row.at.as_microsecond()]);
        let rows = json!(rows.iter().map(seen).collect::<Vec<_>>()).to_string();
        let statement = WRITE_LAST_SEEN.with([rows.as_str().into()]);
        self.execute(statement).await.map(drop)
    }

    async fn write_history(&mut self, rows: &[HistoryRow]) -> Result<()> {
        let rows = history::history_parameter(rows);
        let statement = WRITE_HISTORY.with([rows.as_str().into()]);
        self.execute(statement).await.map(drop)
    }

    async fn write_events(&mut self, rows: &[NewEvent]) -> Result<()> {
        let rows = history::events_parameter(rows, &HashMap::new());
        let statement = WRITE_EVENTS.with([rows.as_str().into()]);
        self.execute(statement).await.map(drop)
    }

    async fn write_answers(&mut self, rows: &[MessageAnswer]) -> Result<Vec<Row>> {
        let parameter = answers::answers_parameter(rows);
        let query = WRITE_ANSWERS.with([parameter.as_str().into()]);
        let changed = self.fetch_all(query).await?;
        let counts: HashMap<&str, u64> = rows
            .iter()
            .map(|row| (row.message_id.as_str(), u64::from(row.count)))
            .collect();
        let mut first_answers = Vec::new();
        for row in changed {
            // A message with more answers than the batch contains had an answer before.
            let count = row.count("answer_count")?;
            if counts.get(row.text("id")?.as_str()) == Some(&count) {
                first_answers.push(row);
            }
        }
        Ok(first_answers)
    }

    async fn write_connection_ends(&mut self, rows: &[ConnectionEnd]) -> Result<Vec<Row>> {
        let offline_messages: Vec<_> = rows.iter().map(offline_message).collect();
        let offline_messages = json!(offline_messages).to_string();
        let parameter = || offline_messages.as_str().into();
        let ended_connections = self
            .fetch_all(INSERT_DISCONNECTED_CLIENTS.with([parameter()]))
            .await?;
        self.execute(DELETE_CONNECTIONS.with([parameter()])).await?;
        for statement in [
            STORE_OVERRULED_OFFLINE_MESSAGES,
            UPDATE_DISCONNECTED_CLIENTS,
        ] {
            self.execute(statement.with([parameter()])).await?;
        }
        Ok(ended_connections)
    }

    async fn write_dead_letters(&mut self, rows: &[DeadLetter]) -> Result<()> {
        for chunk in inserts::chunks(rows) {
            let insert = sqlite_query(&inserts::insert_dead_letters(chunk.len()));
            let insert = chunk.iter().fold(insert, inserts::bind_dead_letter);
            self.connection.execute(insert).await?;
        }
        Ok(())
    }

    async fn write_delivered_reports(&mut self, rows: &[DeliveredReport]) -> Result<()> {
        let micros = Timestamp::as_microsecond;
        let delivered_report = |row: &DeliveredReport| {
            json!([
                row.client_id.as_str(),
                micros(row.row_version),
                micros(row.online_received_at),
                micros(row.reported_at),
            ])
        };
        let reports: Vec<_> = rows.iter().map(delivered_report).collect();
        let reports = json!(reports).to_string();
        let statement = STORE_DELIVERED_REPORTS.with([reports.as_str().into()]);
        self.execute(statement).await.map(drop)
    }

    async fn commit(self) -> Result<()> {
        self.connection.commit().await?;
        // If the files were deleted or replaced before the commit, the data is already lost, and
        // the caller must not acknowledge it.
        Ok(self.files.check()?)
    }
}

fn offline_message(end: &ConnectionEnd) -> serde_json::Value {
    let [session, epoch, sequence] = stamp_columns(Some(end.received_at));
    json!([
        end.client_id.as_str(),
        end.received_at.time.as_microsecond(),
        end.received_at.topic(),
        end.received_at.partition(),
        end.received_at.offset(),
        session,
        epoch,
        sequence,
        end.reason.as_str(),
    ])
}

/// Returns the session, the epoch and the sequence of a message. All are `None` if the message has
/// no ingest stamp.
pub(crate) fn stamp_columns(received_at: Option<ReceivedAt>) -> [Option<i64>; 3] {
    match received_at.and_then(|received_at| received_at.stamp) {
        Some(stamp) => [stamp.session, stamp.epoch, stamp.sequence].map(Some),
        None => [None; 3],
    }
}
