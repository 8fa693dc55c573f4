//! Conversion between rows and Rust types.

use serde_json::Value;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use time::OffsetDateTime;

use domain::{
    ClientId, ClientInfo, ClientKind, Connection, DialectName, MessageId, Tenant, Timestamp,
};
use store::{ClaimedConnection, QueuePosition, ReceivedAt, StoreError, tenant_from_columns};

/// Columns that [`connection`] reads. `COALESCE` is needed because the Go implementation can write
/// null to `account` and `tags`.
pub(super) const CONNECTION_COLUMNS: &str = "client_id, org_id, COALESCE(account, '') AS account, \
     dialect, kind, topic_prefix, canonical_facts, catalog_service_facts, dispatchers, \
     COALESCE(tags, 'null') AS tags, client_name, client_version, message_id, message_sent";

/// Columns that [`claimed_connection`] reads.
pub(super) const CLAIMED_CONNECTION_COLUMNS: &str = "client_id, org_id, \
     COALESCE(account, '') AS account, dialect, kind, canonical_facts, catalog_service_facts, \
     dispatchers, COALESCE(tags, 'null') AS tags, client_name, client_version, updated_at";

/// Reads the tenant of a row. Returns an error if the row has no tenant.
pub(super) fn tenant(row: &PgRow) -> Result<Tenant, StoreError> {
    let org_id: String = row.try_get("org_id")?;
    tenant_from_columns(&org_id, row.try_get("account")?)
        .ok_or_else(|| corrupt_row("empty org_id in a query for connections with a tenant"))
}

pub(super) fn connection(row: &PgRow) -> Result<Connection, StoreError> {
    Ok(Connection {
        client_id: client_id(row)?,
        tenant: tenant(row)?,
        dialect: dialect(row)?,
        kind: client_kind(row)?,
        topic_prefix: row.try_get("topic_prefix")?,
        info: client_info(row)?,
        message_id: message_id(row)?,
        message_sent_at: timestamp(row, "message_sent")?,
    })
}

pub(super) fn claimed_connection(row: &PgRow) -> Result<ClaimedConnection, StoreError> {
    let org_id: String = row.try_get("org_id")?;
    Ok(ClaimedConnection {
        client_id: client_id(row)?,
        tenant: tenant_from_columns(&org_id, row.try_get("account")?),
        dialect: dialect(row)?,
        kind: client_kind(row)?,
        info: client_info(row)?,
        row_version: timestamp(row, "updated_at")?,
    })
}

fn dialect(row: &PgRow) -> Result<DialectName, StoreError> {
    let dialect: String = row.try_get("dialect")?;
    Ok(DialectName::from(dialect))
}

fn client_kind(row: &PgRow) -> Result<ClientKind, StoreError> {
    let kind: String = row.try_get("kind")?;
    ClientKind::from_name(&kind).ok_or_else(|| corrupt_row(format!("kind {kind:?}")))
}

fn client_info(row: &PgRow) -> Result<ClientInfo, StoreError> {
    // Invalid JSON is read as null. Otherwise one invalid row would make all lists of the
    // organization fail.
    let read_json = |column| {
        row.try_get::<Value, _>(column)
            .or_else(|error| match error {
                sqlx::Error::ColumnDecode { .. } => {
                    tracing::error!(column, %error, "invalid JSON in row");
                    Ok(Value::Null)
                }
                other => Err(other),
            })
    };
    Ok(ClientInfo {
        canonical_facts: read_json("canonical_facts")?,
        catalog_service_facts: read_json("catalog_service_facts")?,
        dispatchers: read_json("dispatchers")?,
        tags: read_json("tags")?,
        client_name: row.try_get("client_name")?,
        client_version: row.try_get("client_version")?,
    })
}

pub(super) fn client_id(row: &PgRow) -> Result<ClientId, StoreError> {
    let client_id: String = row.try_get("client_id")?;
    ClientId::new(&client_id)
        .map_err(|error| corrupt_row(format!("client_id {client_id:?}: {error}")))
}

/// Reads `message_id`. Returns `None` for an invalid id, because the Go implementation can write
/// `''`.
pub(super) fn message_id(row: &PgRow) -> Result<Option<MessageId>, StoreError> {
    let message_id: Option<String> = row.try_get("message_id")?;
    Ok(message_id.and_then(|id| MessageId::new(&id).ok()))
}

pub(super) fn timestamp(row: &PgRow, column: &str) -> Result<Timestamp, StoreError> {
    let time: OffsetDateTime = row.try_get(column)?;
    from_sql(column, time)
}

pub(super) fn optional_timestamp(
    row: &PgRow,
    column: &str,
) -> Result<Option<Timestamp>, StoreError> {
    let time: Option<OffsetDateTime> = row.try_get(column)?;
    time.map(|time| from_sql(column, time)).transpose()
}

/// Converts a SQL timestamp. The error text contains the name of the column.
fn from_sql(column: &str, time: OffsetDateTime) -> Result<Timestamp, StoreError> {
    let micros = i64::try_from(time.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(micros)
        .map_err(|_| corrupt_row(format!("{column} {micros} is out of range")))
}

/// Reads the receive time from `time_column` and the queue position from `queue_partition` and
/// `queue_offset`.
pub(super) fn received_at(row: &PgRow, time_column: &str) -> Result<ReceivedAt, StoreError> {
    Ok(ReceivedAt {
        time: timestamp(row, time_column)?,
        position: QueuePosition::from_columns(
            row.try_get("queue_partition")?,
            row.try_get("queue_offset")?,
        ),
    })
}

/// Converts client ids to a SQL array parameter.
pub(super) fn client_id_texts(clients: &[ClientId]) -> Vec<&str> {
    clients.iter().map(ClientId::as_str).collect()
}

/// Converts a timestamp to the type of a SQL parameter. [`OffsetDateTime`] supports the years 0 to
/// 9999, which include all timestamps of the program.
pub(super) fn to_sql(time: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(time.as_microsecond()) * 1000)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn corrupt_row(problem: impl Into<String>) -> StoreError {
    StoreError::CorruptRow(problem.into())
}
