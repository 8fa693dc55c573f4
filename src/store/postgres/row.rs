//! Rows ↔ types.

use serde_json::Value;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use time::OffsetDateTime;

use crate::domain::{
    ClientId, ClientInfo, ClientKind, Connection, Dialect, MessageId, Tenant, Timestamp,
};
use crate::store::{ClaimedConnection, QueuePosition, ReceivedAt, StoreError, tenant_of};

/// The Go implementation may write null where we never do.
pub(super) const CONNECTION_COLUMNS: &str = "client_id, org_id, COALESCE(account, '') AS account, \
     dialect, kind, topic_prefix, canonical_facts, catalog_service_facts, dispatchers, \
     COALESCE(tags, 'null') AS tags, client_name, client_version, message_id, message_sent";

/// The tenant of a row that has one.
pub(super) fn tenant(row: &PgRow) -> Result<Tenant, StoreError> {
    let org_id: String = row.try_get("org_id")?;
    tenant_of(&org_id, row.try_get("account")?)
        .ok_or_else(|| unreadable("a connection of an organisation without one"))
}

pub(super) fn connection(row: &PgRow) -> Result<Connection, StoreError> {
    let dialect: String = row.try_get("dialect")?;
    let kind: String = row.try_get("kind")?;
    Ok(Connection {
        client_id: client_id(row)?,
        tenant: tenant(row)?,
        dialect: Dialect::from_name(&dialect)
            .ok_or_else(|| unreadable(format!("the dialect {dialect:?}")))?,
        kind: ClientKind::from_name(&kind)
            .ok_or_else(|| unreadable(format!("the kind {kind:?}")))?,
        topic_prefix: row.try_get("topic_prefix")?,
        reported: reported(row)?,
        message_id: message_id(row)?,
        message_sent: moment(row, "message_sent")?,
    })
}

pub(super) fn due(row: &PgRow) -> Result<ClaimedConnection, StoreError> {
    let org_id: String = row.try_get("org_id")?;
    let (dialect, kind): (String, String) = (row.try_get("dialect")?, row.try_get("kind")?);
    Ok(ClaimedConnection {
        client_id: client_id(row)?,
        tenant: tenant_of(&org_id, row.try_get("account")?),
        dialect: Dialect::from_name(&dialect)
            .ok_or_else(|| unreadable(format!("the dialect {dialect:?}")))?,
        kind: ClientKind::from_name(&kind)
            .ok_or_else(|| unreadable(format!("the kind {kind:?}")))?,
        reported: reported(row)?,
        version: moment(row, "updated_at")?,
    })
}

fn reported(row: &PgRow) -> Result<ClientInfo, StoreError> {
    // What cannot be read is shown as nothing: one odd row must not take a whole list from its
    // organisation.
    let json = |column| {
        row.try_get::<Value, _>(column)
            .or_else(|error| match error {
                sqlx::Error::ColumnDecode { .. } => {
                    tracing::error!(column, %error, "a row holds JSON that cannot be read");
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
    ClientId::new(&name).map_err(|why| unreadable(format!("the client id {name:?}: {why}")))
}

pub(super) fn message_id(row: &PgRow) -> Result<Option<MessageId>, StoreError> {
    let id: Option<String> = row.try_get("message_id")?;
    Ok(id.and_then(|id| MessageId::new(&id).ok()))
}

pub(super) fn moment(row: &PgRow, column: &str) -> Result<Timestamp, StoreError> {
    let at: OffsetDateTime = row.try_get(column)?;
    to_moment(column, at)
}

pub(super) fn moment_or_none(row: &PgRow, column: &str) -> Result<Option<Timestamp>, StoreError> {
    let at: Option<OffsetDateTime> = row.try_get(column)?;
    at.map(|at| to_moment(column, at)).transpose()
}

fn to_moment(column: &str, at: OffsetDateTime) -> Result<Timestamp, StoreError> {
    let micros = i64::try_from(at.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(micros)
        .map_err(|_| unreadable(format!("{column} {micros} is no moment")))
}

/// When a message was heard, by the column that says so, and where in the queue it stood.
pub(super) fn heard(row: &PgRow, column: &str) -> Result<ReceivedAt, StoreError> {
    Ok(ReceivedAt {
        at: moment(row, column)?,
        place: QueuePosition::from_columns(
            row.try_get("queue_partition")?,
            row.try_get("queue_offset")?,
        ),
    })
}

/// Moments of ours lie between the years 0 and 9999, as do theirs.
pub(super) fn to_sql(at: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.as_microsecond()) * 1000)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn unreadable(what: impl Into<String>) -> StoreError {
    StoreError::CorruptRow(what.into())
}
