//! The transaction that writes a batch.

use async_trait::async_trait;
use const_format::concatcp;
use serde_json::json;

use crate::database_files::DatabaseFiles;
use crate::driver::{Row, SqliteQuery, sqlite_query};
use crate::guarded_connection::GuardedConnection;
use domain::{MessageId, Timestamp};
use store::sql::{
    HEARTBEAT_STAMP_COLUMNS, KEEP_LATER_HEARTBEAT, ONLINE_MESSAGE_COLUMNS, PRESENCE_STAMP_COLUMNS,
    Query, REPLACE_ONLINE_MESSAGE, REPLACE_PRESENCE_STAMP, SqlTransaction, TenantColumns,
};
use store::{
    ConnectionEnd, ConnectionUpsert, DeadLetter, DeliveredReport, HeartbeatUpdate, PartitionLease,
    ReceivedAt, Result, received_after,
};

/// Maximum number of connections per INSERT statement. SQLite accepts 32,766 parameters in a
/// statement, and a connection has 30 parameters.
const MAX_CONNECTIONS_PER_INSERT: usize = 1000;

/// Maximum number of dead letters per INSERT statement. This limits the size of the statement,
/// because a row contains up to 64 KiB of payload.
const MAX_DEAD_LETTERS_PER_INSERT: usize = 100;

/// The offline messages in the parameter `$1`, a JSON array of arrays.
const WITH_OFFLINE_MESSAGES: &str = "WITH offline AS (
    SELECT value ->> 0 AS client_id, value ->> 1 AS received_at,
           value ->> 2 AS queue_topic, value ->> 3 AS queue_partition,
           value ->> 4 AS queue_offset, value ->> 5 AS session, value ->> 6 AS epoch,
           value ->> 7 AS sequence
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

/// Columns of an inserted connection, in the order of the parameters.
const CONNECTION_VALUES: &str = concatcp!(
    "client_id, org_id, account, tags, ",
    ONLINE_MESSAGE_COLUMNS,
    ", tenant_lookup_timestamp, online_received_at, last_heartbeat_at, queue_topic, \
     queue_partition, queue_offset, inventory_eligible, stale_timestamp, created_at, updated_at, ",
    PRESENCE_STAMP_COLUMNS,
    ", ",
    HEARTBEAT_STAMP_COLUMNS
);

const UPDATE_CONNECTION: &str = concatcp!(
    "ON CONFLICT (client_id) DO UPDATE SET ",
    REPLACE_ONLINE_MESSAGE,
    ", org_id = excluded.org_id, account = excluded.account, \
     tenant_lookup_timestamp = excluded.tenant_lookup_timestamp, \
     tenant_lookup_failure_count = CASE WHEN excluded.org_id <> '' THEN 0 \
     ELSE connections.tenant_lookup_failure_count END, ",
    KEEP_LATER_HEARTBEAT,
    ", ",
    REPLACE_PRESENCE_STAMP,
    ", offline_received_at = NULL, \
     queue_topic = excluded.queue_topic, \
     queue_partition = excluded.queue_partition, queue_offset = excluded.queue_offset, \
     inventory_eligible = excluded.inventory_eligible, \
     stale_timestamp = CASE WHEN excluded.org_id <> '' THEN excluded.stale_timestamp \
     ELSE connections.stale_timestamp END, \
     online_received_at = excluded.online_received_at, updated_at = excluded.updated_at"
);

/// Columns of an inserted dead letter, in the order of the parameters.
const DEAD_LETTER_VALUES: &str = "client_id, fingerprint, topic, payload, size, sha256, \
     reason, detail, first_received, last_received";

const UPDATE_DEAD_LETTER: &str = "ON CONFLICT (client_id, fingerprint) DO UPDATE SET \
     reason = excluded.reason, detail = excluded.detail, \
     occurrences = dead_letters.occurrences + 1, \
     last_received = excluded.last_received, replay_requested_at = NULL";

store::statements! {
    ALL_PARTITIONS = "SELECT queue, partition, epoch FROM partition_epoch";

    UPDATE_HEARTBEAT = concatcp!(
        "UPDATE connections AS c SET last_heartbeat_at = h.received_at, \
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
        ONLINE_MESSAGE_COLUMNS,
        ", queue_topic, queue_partition, queue_offset, tenant_lookup_timestamp, \
         tenant_lookup_failure_count, online_received_at, last_heartbeat_at, \
         offline_received_at, created_at, updated_at, ",
        PRESENCE_STAMP_COLUMNS,
        ", ",
        HEARTBEAT_STAMP_COLUMNS,
        ") SELECT client_id, coalesce($6, org_id), coalesce($7, account), tags, ",
        ONLINE_MESSAGE_COLUMNS,
        ", queue_topic, queue_partition, queue_offset, \
         CASE WHEN $6 IS NULL THEN tenant_lookup_timestamp ELSE $8 END, \
         CASE WHEN $6 <> '' THEN 0 ELSE tenant_lookup_failure_count END, \
         h.received_at, h.received_at, disconnected_at, $9, $9, ",
        PRESENCE_STAMP_COLUMNS,
        ", h.session, h.epoch, h.sequence FROM disconnected_clients AS d, ",
        HEARTBEAT,
        " WHERE client_id = $1 AND ",
        received_after!("h.", "h.received_at"; "d.presence_", "d.disconnected_at"),
        " ON CONFLICT (client_id) DO NOTHING"
    );

    DELETE_DISCONNECT = "DELETE FROM disconnected_clients WHERE client_id = $1";

    INSERT_DISCONNECTED_CLIENTS = concatcp!(
        WITH_OFFLINE_MESSAGES,
        "INSERT OR REPLACE INTO disconnected_clients (client_id, org_id, account, tags, ",
        ONLINE_MESSAGE_COLUMNS,
        ", tenant_lookup_timestamp, tenant_lookup_failure_count, disconnected_at, \
         queue_topic, queue_partition, queue_offset, ",
        PRESENCE_STAMP_COLUMNS,
        ") SELECT c.client_id, org_id, account, tags, ",
        ONLINE_MESSAGE_COLUMNS,
        ", tenant_lookup_timestamp, tenant_lookup_failure_count, \
         offline.received_at, coalesce(offline.queue_topic, c.queue_topic), \
         coalesce(offline.queue_partition, c.queue_partition), \
         coalesce(offline.queue_offset, c.queue_offset), offline.session, offline.epoch, \
         offline.sequence FROM offline JOIN connections AS c USING (client_id) WHERE ",
        ENDS_CONNECTION
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

    async fn write_upserts(&mut self, rows: &[ConnectionUpsert], now: Timestamp) -> Result<()> {
        for chunk in rows.chunks(MAX_CONNECTIONS_PER_INSERT) {
            let insert = sqlite_query(&insert_connections(chunk.len()));
            let insert = chunk
                .iter()
                .fold(insert, |insert, row| bind_connection(insert, row, now));
            self.connection.execute(insert).await?;
        }
        Ok(())
    }

    /// Separate statements for each heartbeat are fast enough: SQLite needs no network round trip,
    /// and the recorder does not write most heartbeats of connected clients.
    async fn write_heartbeats(&mut self, rows: &[HeartbeatUpdate], now: Timestamp) -> Result<()> {
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
            if self.execute(restore).await? > 0 {
                let delete = DELETE_DISCONNECT.with([client_id.into()]);
                self.execute(delete).await?;
            }
        }
        Ok(())
    }

    async fn write_connection_ends(&mut self, rows: &[ConnectionEnd]) -> Result<u64> {
        let offline_messages: Vec<_> = rows.iter().map(offline_message).collect();
        let offline_messages = json!(offline_messages).to_string();
        let parameter = || offline_messages.as_str().into();
        self.execute(INSERT_DISCONNECTED_CLIENTS.with([parameter()]))
            .await?;
        let ended_connections = self.execute(DELETE_CONNECTIONS.with([parameter()])).await?;
        for statement in [
            STORE_OVERRULED_OFFLINE_MESSAGES,
            UPDATE_DISCONNECTED_CLIENTS,
        ] {
            self.execute(statement.with([parameter()])).await?;
        }
        Ok(ended_connections)
    }

    async fn write_dead_letters(&mut self, rows: &[DeadLetter]) -> Result<()> {
        for chunk in rows.chunks(MAX_DEAD_LETTERS_PER_INSERT) {
            let insert = sqlite_query(&insert_dead_letters(chunk.len()));
            let insert = chunk.iter().fold(insert, bind_dead_letter);
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
        sequence
    ])
}

/// Returns the session, the epoch and the sequence of a message. All are `None` if the message has
/// no ingest stamp.
fn stamp_columns(received_at: Option<ReceivedAt>) -> [Option<i64>; 3] {
    match received_at.and_then(|received_at| received_at.stamp) {
        Some(stamp) => [stamp.session, stamp.epoch, stamp.sequence].map(Some),
        None => [None; 3],
    }
}

fn insert_connections(rows: usize) -> Query<'static> {
    let (columns, update) = (CONNECTION_VALUES, UPDATE_CONNECTION);
    Query::dynamic(insert_sql("connections", columns, rows, update)).without_cache()
}

fn insert_dead_letters(rows: usize) -> Query<'static> {
    let (columns, update) = (DEAD_LETTER_VALUES, UPDATE_DEAD_LETTER);
    Query::dynamic(insert_sql("dead_letters", columns, rows, update)).without_cache()
}

/// Returns the text of an INSERT of several rows. The parameters have no numbers, because SQLite
/// needs more time for the names of thousands of numbered parameters.
fn insert_sql(table: &str, columns: &str, rows: usize, on_conflict: &str) -> String {
    let row = format!("({})", vec!["?"; columns.split(',').count()].join(", "));
    let values = vec![row; rows].join(", ");
    format!("INSERT INTO {table} ({columns}) VALUES {values} {on_conflict}")
}

fn bind_connection(query: SqliteQuery, upsert: &ConnectionUpsert, now: Timestamp) -> SqliteQuery {
    let tenant = TenantColumns::from(&upsert.tenant);
    let info = &upsert.info;
    let micros = Timestamp::as_microsecond;
    let presence_stamp = stamp_columns(Some(upsert.received_at));
    let heartbeat_stamp = stamp_columns(upsert.last_heartbeat_at);
    let query = query
        .bind(upsert.client_id.as_str())
        .bind(tenant.org_id)
        .bind(tenant.account)
        .bind(info.tags.to_string())
        .bind(upsert.dialect.as_str())
        .bind(upsert.kind.as_str())
        .bind(&upsert.topic_prefix)
        .bind(info.canonical_facts.to_string())
        .bind(info.catalog_service_facts.to_string())
        .bind(info.dispatchers.to_string())
        .bind(&info.client_name)
        .bind(&info.client_version)
        .bind(upsert.message_id.as_ref().map(MessageId::as_str))
        .bind(micros(upsert.message_sent_at))
        .bind(tenant.lookup_timestamp.map(micros))
        .bind(micros(upsert.received_at.time))
        .bind(
            upsert
                .last_heartbeat_at
                .map(|received_at| micros(received_at.time)),
        )
        .bind(upsert.received_at.topic())
        .bind(upsert.received_at.partition())
        .bind(upsert.received_at.offset())
        .bind(upsert.inventory_eligible)
        .bind(upsert.reported_to_inventory_at.map_or(0, micros))
        .bind(micros(now))
        .bind(micros(now));
    let stamps = presence_stamp.into_iter().chain(heartbeat_stamp);
    stamps.fold(query, SqliteQuery::bind)
}

fn bind_dead_letter(query: SqliteQuery, dead_letter: &DeadLetter) -> SqliteQuery {
    query
        .bind(dead_letter.client_id_column())
        .bind(dead_letter.fingerprint())
        .bind(&dead_letter.topic)
        .bind(&dead_letter.payload[..])
        .bind(i64::try_from(dead_letter.payload_size).unwrap_or(i64::MAX))
        .bind(&dead_letter.sha256)
        .bind(dead_letter.reason.as_str())
        .bind(&dead_letter.detail)
        .bind(dead_letter.received_at.as_microsecond())
        .bind(dead_letter.received_at.as_microsecond())
}

/// Returns the name and the text of the INSERT statements of this module, for two rows.
pub(crate) fn example_inserts() -> Vec<(&'static str, String)> {
    vec![
        (
            "insert_connections",
            insert_connections(2).sql().to_string(),
        ),
        (
            "insert_dead_letters",
            insert_dead_letters(2).sql().to_string(),
        ),
    ]
}
