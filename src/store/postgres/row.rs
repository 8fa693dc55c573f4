//! Conversion between rows and Rust types.

use serde_json::Value;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use time::OffsetDateTime;

use crate::domain::{
    ClientId, ClientInfo, ClientKind, Connection, Dialect, MessageId, Tenant, Timestamp,
};
use crate::store::{ClaimedConnection, QueuePosition, ReceivedAt, StoreError, tenant_of};

/// Columns that [`connection`] reads. The Go implementation can write null to `account` and `tags`.
pub(super) const CONNECTION_COLUMNS: &str = "client_id, org_id, COALESCE(account, '') AS account, \
     dialect, kind, topic_prefix, canonical_facts, catalog_service_facts, dispatchers, \
     COALESCE(tags, 'null') AS tags, client_name, client_version, message_id, message_sent";

/// Columns that [`claimed_connection`] reads.
pub(super) const CLAIMED_COLUMNS: &str = "client_id, org_id, COALESCE(account, '') AS account, \
     dialect, kind, canonical_facts, catalog_service_facts, dispatchers, \
     COALESCE(tags, 'null') AS tags, client_name, client_version, updated_at";

/// Reads the tenant of a row that must have one.
pub(super) fn tenant(row: &PgRow) -> Result<Tenant, StoreError> {
    let org_id: String = row.try_get("org_id")?;
    tenant_of(&org_id, row.try_get("account")?)
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
        message_sent: timestamp(row, "message_sent")?,
    })
}

pub(super) fn claimed_connection(row: &PgRow) -> Result<ClaimedConnection, StoreError> {
    let org_id: String = row.try_get("org_id")?;
    Ok(ClaimedConnection {
        client_id: client_id(row)?,
        tenant: tenant_of(&org_id, row.try_get("account")?),
        dialect: dialect(row)?,
        kind: client_kind(row)?,
        info: client_info(row)?,
        row_version: timestamp(row, "updated_at")?,
    })
}

fn dialect(row: &PgRow) -> Result<Dialect, StoreError> {
    let name: String = row.try_get("dialect")?;
    Dialect::from_name(&name).ok_or_else(|| corrupt_row(format!("dialect {name:?}")))
}

fn client_kind(row: &PgRow) -> Result<ClientKind, StoreError> {
    let name: String = row.try_get("kind")?;
    ClientKind::from_name(&name).ok_or_else(|| corrupt_row(format!("kind {name:?}")))
}

fn client_info(row: &PgRow) -> Result<ClientInfo, StoreError> {
    // Reads invalid JSON as null: one invalid row must not fail the list of its organization.
    let json = |column| {
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
        canonical_facts: json("canonical_facts")?,
        catalog_service_facts: json("catalog_service_facts")?,
        dispatchers: json("dispatchers")?,
        tags: json("tags")?,
        client_name: row.try_get("client_name")?,
        client_version: row.try_get("client_version")?,
    })
}

pub(super) fn client_id(row: &PgRow) -> Result<ClientId, StoreError> {
    let name: String = row.try_get("client_id")?;
    ClientId::new(&name).map_err(|error| corrupt_row(format!("client_id {name:?}: {error}")))
}

/// Reads `message_id`. An invalid id is read as `None`: the Go implementation can write `''`.
pub(super) fn message_id(row: &PgRow) -> Result<Option<MessageId>, StoreError> {
    let id: Option<String> = row.try_get("message_id")?;
    Ok(id.and_then(|id| MessageId::new(&id).ok()))
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

fn from_sql(column: &str, time: OffsetDateTime) -> Result<Timestamp, StoreError> {
    let micros = i64::try_from(time.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(micros)
        .map_err(|_| corrupt_row(format!("{column} {micros} is out of range")))
}

/// Reads the receive time from `time_column`, and the queue position.
pub(super) fn received_at(row: &PgRow, time_column: &str) -> Result<ReceivedAt, StoreError> {
    Ok(ReceivedAt {
        time: timestamp(row, time_column)?,
        position: QueuePosition::from_columns(
            row.try_get("queue_partition")?,
            row.try_get("queue_offset")?,
        ),
    })
}

/// Client ids as an array parameter.
pub(super) fn client_id_texts(clients: &[ClientId]) -> Vec<&str> {
    clients.iter().map(ClientId::as_str).collect()
}

/// Converts a timestamp. The program's timestamps are within the years 0 to 9999, which
/// [`OffsetDateTime`] supports.
pub(super) fn to_sql(time: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(time.as_microsecond()) * 1000)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn corrupt_row(value: impl Into<String>) -> StoreError {
    StoreError::CorruptRow(value.into())
}
