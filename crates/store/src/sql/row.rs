//! Conversion of rows to Rust types.

use const_format::concatcp;
use serde_json::Value;

use domain::{ClientId, ClientInfo, ClientKind, Connection, DialectName, MessageId, OrgId, Tenant};
use domain::{IngestStamp, OfflineReason, Timestamp};

use crate::batch::PresenceColumns;
use crate::clients::{ClientRecord, ClientStatus, HistoryEntry};
use crate::dead_letters::StoredDeadLetter;
use crate::error::{Result, StoreError};
use crate::history::ContentHashes;
use crate::ingest_epochs::IngestEpoch;
use crate::lookup_queue::{ClaimedConnection, ClientDetails, TenantlessClient, TenantlessCounts};
use crate::partitions::{PartitionLease, QueuePosition, QueueTopic, ReceivedAt};
use crate::presence::{RowVersion, StoredConnection, StoredDisconnect, StoredState};

/// Reads the columns of a row. Each backend implements this trait for the rows of its driver.
///
/// Each method fails if the row has no column of this name, or the column has another type.
#[expect(
    clippy::missing_errors_doc,
    reason = "the documentation of the trait contains the errors of all methods"
)]
pub trait ColumnReader: Send + Sync + 'static {
    /// Reads a text. Returns `None` for null.
    fn optional_text(&self, column: &str) -> Result<Option<String>>;

    /// Reads a whole number of any size. Returns `None` for null.
    fn optional_integer(&self, column: &str) -> Result<Option<i64>>;

    /// Reads a time. Returns `None` for null.
    fn optional_timestamp(&self, column: &str) -> Result<Option<Timestamp>>;

    /// Reads binary data.
    fn bytes(&self, column: &str) -> Result<Vec<u8>>;

    /// Reads JSON. Reads invalid JSON as null, with [`invalid_json`].
    fn json(&self, column: &str) -> Result<Value>;

    /// Reads a text that is not null.
    fn text(&self, column: &str) -> Result<String> {
        not_null(column, self.optional_text(column)?)
    }

    /// Reads a time that is not null.
    fn timestamp(&self, column: &str) -> Result<Timestamp> {
        not_null(column, self.optional_timestamp(column)?)
    }

    /// Reads a count that is not null. Reads a negative number as 0.
    fn count(&self, column: &str) -> Result<u64> {
        let count = not_null(column, self.optional_integer(column)?)?;
        Ok(u64::try_from(count).unwrap_or(0))
    }
}

fn not_null<T>(column: &str, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| corrupt_row(format!("{column} is null")))
}

fn corrupt_row(problem: impl Into<String>) -> StoreError {
    StoreError::CorruptRow(problem.into())
}

/// Logs that a column contains invalid JSON, and returns null. Without this replacement, one
/// invalid row would make all lists of the organization fail.
pub fn invalid_json(column: &str, error: &dyn std::error::Error) -> Value {
    tracing::error!(column, %error, "invalid JSON in row");
    Value::Null
}

/// Converts microseconds since 1970 to a timestamp.
///
/// # Errors
/// If the timestamp is out of range. The error text contains the name of the column.
pub fn timestamp_from_micros(column: &str, micros: i64) -> Result<Timestamp> {
    Timestamp::from_microsecond(micros)
        .map_err(|_| corrupt_row(format!("{column} {micros} is out of range")))
}

pub(super) fn client_id(row: &impl ColumnReader) -> Result<ClientId> {
    let text = row.text("client_id")?;
    ClientId::new(&text).map_err(|error| corrupt_row(format!("client_id {text:?}: {error}")))
}

/// Reads the tenant of a row. Returns `None` if `org_id` is empty.
fn optional_tenant(row: &impl ColumnReader) -> Result<Option<Tenant>> {
    let account = row.text("account")?;
    let org_id = OrgId::new(&row.text("org_id")?).ok();
    Ok(org_id.map(|org_id| Tenant { org_id, account }))
}

/// Reads the tenant of a row. Returns an error if the row has no tenant.
pub(super) fn tenant(row: &impl ColumnReader) -> Result<Tenant> {
    optional_tenant(row)?
        .ok_or_else(|| corrupt_row("empty org_id in a query for connections with a tenant"))
}

/// Reads `message_id`. Returns `None` for an invalid id, because the Go implementation can write
/// `''`.
fn message_id(row: &impl ColumnReader) -> Result<Option<MessageId>> {
    let message_id = row.optional_text("message_id")?;
    Ok(message_id.and_then(|id| MessageId::new(&id).ok()))
}

fn dialect(row: &impl ColumnReader) -> Result<DialectName> {
    Ok(DialectName::from(row.text("dialect")?))
}

fn client_kind(row: &impl ColumnReader) -> Result<ClientKind> {
    let kind = row.text("kind")?;
    ClientKind::from_name(&kind).ok_or_else(|| corrupt_row(format!("kind {kind:?}")))
}

/// Columns that contain the latest online message of a client, in `connections` and in
/// `disconnected_clients`. The column `tags` also belongs to the online message, but is not in this
/// list, because it can be null.
pub const ONLINE_MESSAGE_COLUMNS: &str = "dialect, kind, topic_prefix, canonical_facts, \
     catalog_service_facts, dispatchers, client_name, client_version, message_id, message_sent";

/// Time of the latest message of a connected client. In a row of an earlier version, the time of the
/// latest online message or heartbeat.
pub(super) const LAST_SEEN_COLUMN: &str = concatcp!(LAST_SEEN, " AS last_seen");

/// Expression for the time of the latest message of a connected client.
pub const LAST_SEEN: &str = "COALESCE(last_seen, CASE WHEN last_heartbeat_at > online_received_at \
     THEN last_heartbeat_at ELSE online_received_at END)";

/// Assignments that replace [`ONLINE_MESSAGE_COLUMNS`] and `tags` by the values of an `INSERT`.
pub const REPLACE_ONLINE_MESSAGE: &str = "dialect = excluded.dialect, kind = excluded.kind, \
     topic_prefix = excluded.topic_prefix, canonical_facts = excluded.canonical_facts, \
     catalog_service_facts = excluded.catalog_service_facts, \
     dispatchers = excluded.dispatchers, client_name = excluded.client_name, \
     client_version = excluded.client_version, message_id = excluded.message_id, \
     message_sent = excluded.message_sent, tags = excluded.tags";

/// Columns that contain the ingest stamp of the latest presence message, in `connections` and in
/// `disconnected_clients`.
pub const PRESENCE_STAMP_COLUMNS: &str = "presence_session, presence_epoch, presence_sequence";

/// Columns that contain [`PresenceColumns`], in `connections` and in `disconnected_clients`.
pub const PRESENCE_COLUMNS: &str = "connected_since, last_seen, reconnects, hourly_reconnects, \
     hourly_reconnects_since, transition_count, content_hashes";

/// Expression for the number of the client's latest transition. `$row` is the prefix of the columns of
/// `connections` or `disconnected_clients`. The caller needs the crate `const_format`.
///
/// A row that an earlier version or the Go implementation has written has no count, although the client
/// can have a history. New numbers continue after that history, and do not replace its rows.
#[macro_export]
macro_rules! latest_transition {
    ($row:expr) => {
        const_format::concatcp!(
            "CASE WHEN ",
            $row,
            "transition_count > 0 THEN ",
            $row,
            "transition_count ELSE COALESCE((SELECT max(numbered.number) \
             FROM presence_history AS numbered WHERE numbered.client_id = ",
            $row,
            "client_id), 0) END"
        )
    };
}

/// Assignments that replace [`PRESENCE_COLUMNS`] by the values of an `INSERT`.
pub const REPLACE_PRESENCE_COLUMNS: &str = "connected_since = excluded.connected_since, \
     last_seen = excluded.last_seen, reconnects = excluded.reconnects, \
     hourly_reconnects = excluded.hourly_reconnects, \
     hourly_reconnects_since = excluded.hourly_reconnects_since, \
     transition_count = excluded.transition_count, content_hashes = excluded.content_hashes";

/// Columns that contain the ingest stamp of the latest heartbeat, in `connections`.
pub const HEARTBEAT_STAMP_COLUMNS: &str = "heartbeat_session, heartbeat_epoch, heartbeat_sequence";

/// Assignments that replace [`PRESENCE_STAMP_COLUMNS`] by the values of an `INSERT`. A message
/// without a stamp clears the stamp of the previous message.
pub const REPLACE_PRESENCE_STAMP: &str = "presence_session = excluded.presence_session, \
     presence_epoch = excluded.presence_epoch, presence_sequence = excluded.presence_sequence";

/// Expression that is true if the message `$left` was received after the message `$right`. It is
/// the rule of [`ReceivedAt::is_after`](crate::ReceivedAt::is_after).
///
/// Each message is given by the prefix of its columns `session`, `epoch` and `sequence`, and by its
/// receive time. The caller needs the crate `const_format`.
#[macro_export]
macro_rules! received_after {
    ($left:expr, $left_time:expr; $right:expr, $right_time:expr) => {
        const_format::concatcp!(
            "CASE WHEN ",
            $left,
            "session = ",
            $right,
            "session THEN (",
            $left,
            "epoch, ",
            $left,
            "sequence) > (",
            $right,
            "epoch, ",
            $right,
            "sequence) ELSE ",
            $left_time,
            " > ",
            $right_time,
            " END"
        )
    };
}

/// Condition that an upsert of a connection keeps the stored heartbeat: the heartbeat is later than
/// the online message and later than the heartbeat of the upsert.
const KEEPS_STORED_HEARTBEAT: &str = concatcp!(
    "connections.last_heartbeat_at IS NOT NULL AND ",
    received_after!("connections.heartbeat_", "connections.last_heartbeat_at";
        "excluded.presence_", "excluded.online_received_at"),
    " AND (excluded.last_heartbeat_at IS NULL OR ",
    received_after!("connections.heartbeat_", "connections.last_heartbeat_at";
        "excluded.heartbeat_", "excluded.last_heartbeat_at"),
    ")"
);

/// Assignments of an upsert of a connection that keep the later one of the stored heartbeat and the
/// heartbeat of the upsert.
pub const KEEP_LATER_HEARTBEAT: &str = concatcp!(
    "last_heartbeat_at = CASE WHEN ",
    KEEPS_STORED_HEARTBEAT,
    " THEN connections.last_heartbeat_at ELSE excluded.last_heartbeat_at END, \
     heartbeat_session = CASE WHEN ",
    KEEPS_STORED_HEARTBEAT,
    " THEN connections.heartbeat_session ELSE excluded.heartbeat_session END, \
     heartbeat_epoch = CASE WHEN ",
    KEEPS_STORED_HEARTBEAT,
    " THEN connections.heartbeat_epoch ELSE excluded.heartbeat_epoch END, \
     heartbeat_sequence = CASE WHEN ",
    KEEPS_STORED_HEARTBEAT,
    " THEN connections.heartbeat_sequence ELSE excluded.heartbeat_sequence END"
);

fn client_info(row: &impl ColumnReader) -> Result<ClientInfo> {
    Ok(ClientInfo {
        canonical_facts: row.json("canonical_facts")?,
        catalog_service_facts: row.json("catalog_service_facts")?,
        dispatchers: row.json("dispatchers")?,
        tags: row.json("tags")?,
        client_name: row.text("client_name")?,
        client_version: row.text("client_version")?,
    })
}

pub(super) fn connection(row: &impl ColumnReader) -> Result<Connection> {
    Ok(Connection {
        client_id: client_id(row)?,
        tenant: tenant(row)?,
        dialect: dialect(row)?,
        kind: client_kind(row)?,
        topic_prefix: row.text("topic_prefix")?,
        info: client_info(row)?,
        message_id: message_id(row)?,
        message_sent_at: row.timestamp("message_sent")?,
        online_received_at: row.timestamp("online_received_at")?,
        connected_since: row.timestamp("connected_since")?,
        last_seen: row.timestamp("last_seen")?,
    })
}

/// Reads the columns that identify a connection of a client, and the time of the latest message of
/// that connection.
pub(super) fn current_connection(row: &impl ColumnReader) -> Result<CurrentConnection> {
    let latest_presence_at = row.timestamp("presence_received_at")?;
    Ok(CurrentConnection {
        message_id: message_id(row)?,
        online_received_at: row.timestamp("online_received_at")?,
        latest_message_at: row
            .optional_timestamp("last_heartbeat_at")?
            .map_or(latest_presence_at, |time| time.max(latest_presence_at)),
    })
}

/// The stored connection of a client that receives a disconnect command.
pub(super) struct CurrentConnection {
    message_id: Option<MessageId>,
    online_received_at: Timestamp,
    /// Receive time of the latest presence message or heartbeat.
    pub latest_message_at: Timestamp,
}

impl CurrentConnection {
    /// Returns whether this is still the same connection. Heartbeats, tenant lookups and reports to
    /// inventory do not change the compared columns.
    pub fn is_same_as(&self, connection: &Connection) -> bool {
        self.message_id == connection.message_id
            && self.online_received_at == connection.online_received_at
    }
}

pub(super) fn claimed_connection(row: &impl ColumnReader) -> Result<ClaimedConnection> {
    Ok(ClaimedConnection {
        client_id: client_id(row)?,
        tenant: optional_tenant(row)?,
        row_version: row.timestamp("updated_at")?,
    })
}

pub(super) fn client_details(row: &impl ColumnReader) -> Result<ClientDetails> {
    Ok(ClientDetails {
        client_id: client_id(row)?,
        dialect: dialect(row)?,
        kind: client_kind(row)?,
        info: client_info(row)?,
        row_version: row.timestamp("updated_at")?,
    })
}

/// Reads a row of `connections` or `disconnected_clients` into the state of its client.
pub(super) fn add_to_state(state: &mut StoredState, row: &impl ColumnReader) -> Result<()> {
    let message_id = message_id(row)?;
    let message_sent_at = row.timestamp("message_sent")?;
    let tenant = optional_tenant(row)?;
    let received_at = ReceivedAt {
        time: row.timestamp("presence_received_at")?,
        position: queue_position(row)?,
        stamp: ingest_stamp(
            row,
            ["presence_session", "presence_epoch", "presence_sequence"],
        )?,
    };
    if row.count("connected")? == 1 {
        state.connection = Some(StoredConnection {
            message_id,
            message_sent_at,
            tenant,
            received_at,
            offline_message_overruled: row.optional_timestamp("offline_received_at")?.is_some(),
            last_heartbeat_at: last_heartbeat(row)?,
            version: RowVersion {
                updated_at: row.timestamp("updated_at")?,
                search_hash: row.optional_integer("search_hash")?,
            },
            presence: presence_columns(row)?,
        });
    } else {
        state.disconnect = Some(StoredDisconnect {
            message_id,
            message_sent_at,
            tenant,
            received_at,
            presence: presence_columns(row)?,
        });
    }
    Ok(())
}

/// Reads the columns in [`PRESENCE_COLUMNS`].
fn presence_columns(row: &impl ColumnReader) -> Result<PresenceColumns> {
    let content_hashes = row.optional_text("content_hashes")?;
    Ok(PresenceColumns {
        connected_since: row.optional_timestamp("connected_since")?,
        last_seen: row.optional_timestamp("last_seen")?,
        reconnects: row.count("reconnects")?,
        hourly_reconnects: row.count("hourly_reconnects")?,
        hourly_reconnects_since: row.optional_timestamp("hourly_reconnects_since")?,
        transition_count: row.count("transition_count")?,
        content_hashes: content_hashes.as_deref().and_then(ContentHashes::parse),
    })
}

/// A connection that an offline message or a caller has ended.
pub(super) struct EndedConnection {
    pub client_id: ClientId,
    pub tenant: Option<Tenant>,
    pub transition_count: u64,
    pub connected_since: Timestamp,
    pub disconnected_at: Timestamp,
    pub dispatchers: Value,
}

pub(super) fn ended_connection(row: &impl ColumnReader) -> Result<EndedConnection> {
    Ok(EndedConnection {
        client_id: client_id(row)?,
        tenant: optional_tenant(row)?,
        transition_count: row.count("transition_count")?,
        connected_since: row.timestamp("connected_since")?,
        disconnected_at: row.timestamp("disconnected_at")?,
        dispatchers: row.json("dispatchers")?,
    })
}

/// A connection that a heartbeat has restored, or whose tenant was found.
pub(super) struct RestoredConnection {
    pub client_id: ClientId,
    pub tenant: Option<Tenant>,
    pub transition_count: u64,
    pub connected_since: Timestamp,
    pub info: ClientInfo,
}

pub(super) fn restored_connection(row: &impl ColumnReader) -> Result<RestoredConnection> {
    Ok(RestoredConnection {
        client_id: client_id(row)?,
        tenant: optional_tenant(row)?,
        transition_count: row.count("transition_count")?,
        connected_since: row.timestamp("connected_since")?,
        info: client_info(row)?,
    })
}

/// Reads the latest heartbeat. A stamp without a time is outdated: a process that does not know the
/// columns of the stamp cleared only the time.
fn last_heartbeat(row: &impl ColumnReader) -> Result<Option<ReceivedAt>> {
    let Some(time) = row.optional_timestamp("last_heartbeat_at")? else {
        return Ok(None);
    };
    let columns = ["heartbeat_session", "heartbeat_epoch", "heartbeat_sequence"];
    Ok(Some(ReceivedAt {
        time,
        position: None,
        stamp: ingest_stamp(row, columns)?,
    }))
}

/// Reads a stamp from the columns of its session, epoch and sequence. Returns `None` if a column is
/// null.
fn ingest_stamp(row: &impl ColumnReader, columns: [&str; 3]) -> Result<Option<IngestStamp>> {
    let mut numbers = [None; 3];
    for (number, column) in numbers.iter_mut().zip(columns) {
        *number = row.optional_integer(column)?;
    }
    let [Some(session), Some(epoch), Some(sequence)] = numbers else {
        return Ok(None);
    };
    Ok(Some(IngestStamp {
        session,
        epoch,
        sequence,
    }))
}

pub(super) fn ingest_epoch(row: &impl ColumnReader) -> Result<IngestEpoch> {
    Ok(IngestEpoch {
        session: not_null("session", row.optional_integer("session")?)?,
        epoch: not_null("epoch", row.optional_integer("epoch")?)?,
    })
}

fn queue_position(row: &impl ColumnReader) -> Result<Option<QueuePosition>> {
    let topic = row.optional_integer("queue_topic")?;
    let partition = row.optional_integer("queue_partition")?;
    let offset = row.optional_integer("queue_offset")?;
    let position = partition.zip(offset).map(|(partition, offset)| {
        let partition = partition_number(partition)?;
        Ok(QueuePosition {
            topic,
            partition,
            offset,
        })
    });
    position.transpose()
}

fn partition_number(number: i64) -> Result<i32> {
    i32::try_from(number).map_err(|_| corrupt_row(format!("partition {number} is out of range")))
}

pub(super) fn partition_lease(
    row: &impl ColumnReader,
    queue: QueueTopic,
) -> Result<PartitionLease> {
    let partition = not_null("partition", row.optional_integer("partition")?)?;
    Ok(PartitionLease {
        queue,
        partition: partition_number(partition)?,
        epoch: not_null("epoch", row.optional_integer("epoch")?)?,
    })
}

pub(super) fn tenantless_client(row: &impl ColumnReader) -> Result<TenantlessClient> {
    let failed_lookups = row.count("failed_lookups")?;
    Ok(TenantlessClient {
        client_id: client_id(row)?,
        last_lookup_at: row.optional_timestamp("tenant_lookup_timestamp")?,
        failed_lookups: u32::try_from(failed_lookups).unwrap_or(u32::MAX),
        online_received_at: row.timestamp("online_received_at")?,
    })
}

pub(super) fn tenantless_counts(row: &impl ColumnReader) -> Result<TenantlessCounts> {
    Ok(TenantlessCounts {
        pending_clients: row.count("pending")?,
        exhausted_clients: row.count("exhausted")?,
        oldest_lookup_at: row.optional_timestamp("oldest_lookup_at")?,
    })
}

/// Reads a dead letter. The row of a list has no column `payload`.
pub(super) fn dead_letter(row: &impl ColumnReader, payload: Vec<u8>) -> Result<StoredDeadLetter> {
    Ok(StoredDeadLetter {
        id: not_null("id", row.optional_integer("id")?)?,
        client: ClientId::new(&row.text("client_id")?).ok(),
        topic: row.text("topic")?,
        payload: payload.into(),
        payload_size: row.count("size")?,
        sha256: row.text("sha256")?,
        reason: row.text("reason")?,
        detail: row.text("detail")?,
        occurrences: row.count("occurrences")?,
        first_received: row.timestamp("first_received")?,
        last_received: row.timestamp("last_received")?,
        replay_requested_at: row.optional_timestamp("replay_requested_at")?,
    })
}

/// Reads a row of `connections` or `disconnected_clients`, with the columns of
/// [`super::SELECT_CONNECTED_CLIENTS`].
pub(super) fn client_record(row: &impl ColumnReader) -> Result<ClientRecord> {
    let status = if row.count("connected")? == 1 {
        ClientStatus::Connected
    } else {
        let reason = row.optional_text("reason")?;
        ClientStatus::Disconnected {
            at: row.timestamp("disconnected_at")?,
            reason: reason.and_then(|reason| OfflineReason::from_name(&reason)),
        }
    };
    let failed_lookups = row.count("failed_lookups")?;
    Ok(ClientRecord {
        client_id: client_id(row)?,
        tenant: optional_tenant(row)?,
        dialect: dialect(row)?,
        kind: client_kind(row)?,
        topic_prefix: row.text("topic_prefix")?,
        info: client_info(row)?,
        status,
        connected_since: row.timestamp("connected_since")?,
        last_seen: row.timestamp("last_seen")?,
        reconnects: row.count("reconnects")?,
        hourly_reconnects: row.count("hourly_reconnects")?,
        hourly_reconnects_since: row.optional_timestamp("hourly_reconnects_since")?,
        failed_lookups: u32::try_from(failed_lookups).unwrap_or(u32::MAX),
        last_lookup_at: row.optional_timestamp("tenant_lookup_timestamp")?,
    })
}

pub(super) fn history_entry(row: &impl ColumnReader) -> Result<HistoryEntry> {
    Ok(HistoryEntry {
        number: row.count("number")?,
        at: row.timestamp("at")?,
        org: OrgId::new(&row.text("org_id")?).ok(),
        status: row.text("status")?,
        reason: row.text("reason")?,
    })
}
