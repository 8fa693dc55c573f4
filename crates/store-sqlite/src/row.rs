//! Conversion between rows and Rust types.

use serde_json::Value;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use domain::{
    ClientId, ClientInfo, ClientKind, Connection, DialectName, MessageId, Tenant, Timestamp,
};
use store::{ClaimedConnection, QueuePosition, ReceivedAt, StoreError, tenant_from_columns};

/// Columns that [`connection`] reads.
pub(super) const CONNECTION_COLUMNS: &str = "client_id, org_id, account, dialect, kind, \
     topic_prefix, canonical_facts, catalog_service_facts, dispatchers, tags, client_name, \
     client_version, message_id, message_sent";

/// Columns that [`claimed_connection`] reads.
pub(super) const CLAIMED_CONNECTION_COLUMNS: &str = "client_id, org_id, account, dialect, kind, \
     canonical_facts, catalog_service_facts, dispatchers, tags, client_name, client_version, \
     updated_at";

/// Reads the tenant of a row. Returns an error if the row has no tenant.
pub(super) fn tenant(row: &SqliteRow) -> Result<Tenant, StoreError> {
    let org_id: String = row.try_get("org_id")?;
    tenant_from_columns(&org_id, row.try_get("account")?)
        .ok_or_else(|| corrupt_row("empty org_id in a query for connections with a tenant"))
}

pub(super) fn connection(row: &SqliteRow) -> Result<Connection, StoreError> {
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

pub(super) fn claimed_connection(row: &SqliteRow) -> Result<ClaimedConnection, StoreError> {
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

fn dialect(row: &SqliteRow) -> Result<DialectName, StoreError> {
    let dialect: String = row.try_get("dialect")?;
    Ok(DialectName::from(dialect))
}

fn client_kind(row: &SqliteRow) -> Result<ClientKind, StoreError> {
    let kind: String = row.try_get("kind")?;
    ClientKind::from_name(&kind).ok_or_else(|| corrupt_row(format!("kind {kind:?}")))
}

fn client_info(row: &SqliteRow) -> Result<ClientInfo, StoreError> {
    Ok(ClientInfo {
        canonical_facts: read_json(row, "canonical_facts")?,
        catalog_service_facts: read_json(row, "catalog_service_facts")?,
        dispatchers: read_json(row, "dispatchers")?,
        tags: read_json(row, "tags")?,
        client_name: row.try_get("client_name")?,
        client_version: row.try_get("client_version")?,
    })
}

pub(super) fn client_id(row: &SqliteRow) -> Result<ClientId, StoreError> {
    let client_id: String = row.try_get("client_id")?;
    ClientId::new(&client_id)
        .map_err(|error| corrupt_row(format!("client_id {client_id:?}: {error}")))
}

pub(super) fn message_id(row: &SqliteRow) -> Result<Option<MessageId>, StoreError> {
    let message_id: Option<String> = row.try_get("message_id")?;
    Ok(message_id.and_then(|id| MessageId::new(&id).ok()))
}

pub(super) fn timestamp(row: &SqliteRow, column: &str) -> Result<Timestamp, StoreError> {
    let micros: i64 = row.try_get(column)?;
    from_micros(column, micros)
}

pub(super) fn optional_timestamp(
    row: &SqliteRow,
    column: &str,
) -> Result<Option<Timestamp>, StoreError> {
    let micros: Option<i64> = row.try_get(column)?;
    micros.map(|micros| from_micros(column, micros)).transpose()
}

/// Converts microseconds since 1970 to a timestamp. The error text contains the name of the column.
fn from_micros(column: &str, micros: i64) -> Result<Timestamp, StoreError> {
    Timestamp::from_microsecond(micros)
        .map_err(|_| corrupt_row(format!("{column} {micros} is out of range")))
}

/// Reads the receive time from `time_column` and the queue position from `queue_partition` and
/// `queue_offset`.
pub(super) fn received_at(row: &SqliteRow, time_column: &str) -> Result<ReceivedAt, StoreError> {
    Ok(ReceivedAt {
        time: timestamp(row, time_column)?,
        position: QueuePosition::from_columns(
            row.try_get("queue_partition")?,
            row.try_get("queue_offset")?,
        ),
    })
}

/// Reads a JSON column. Invalid JSON is read as null. Otherwise one invalid row would make all
/// lists of the organization fail.
fn read_json(row: &SqliteRow, column: &str) -> Result<Value, StoreError> {
    let text: String = row.try_get(column)?;
    Ok(serde_json::from_str(&text).unwrap_or_else(|error| {
        tracing::error!(column, %error, "invalid JSON in row");
        Value::Null
    }))
}

/// Converts client ids to a JSON array. The array is a single SQL parameter for any number of
/// clients.
pub(super) fn client_ids_json(clients: &[ClientId]) -> String {
    let client_ids: Vec<&str> = clients.iter().map(ClientId::as_str).collect();
    serde_json::json!(client_ids).to_string()
}

fn corrupt_row(problem: impl Into<String>) -> StoreError {
    StoreError::CorruptRow(problem.into())
}
