//! Queries that find clients by their client ids, and queries that list client ids.

use std::collections::HashMap;

use const_format::concatcp;
use sqlx::{Row as _, SqlitePool};

use super::row::{self, CONNECTION_COLUMNS};
use domain::{ClientId, Connection, OrgId};
use store::{StoreError, StoredConnection, StoredDisconnect, StoredState, tenant_from_columns};

pub(super) async fn load_client_states(
    pool: &SqlitePool,
    clients: &[ClientId],
) -> Result<HashMap<ClientId, StoredState>, StoreError> {
    let rows = sqlx::query(
        "SELECT 1 AS connected, client_id, org_id, account, message_id, message_sent,
                coalesce(offline_received_at, online_received_at) AS presence_received_at,
                queue_partition, queue_offset, last_heartbeat_at, offline_received_at
           FROM connections WHERE client_id IN (SELECT value FROM json_each(?1))
          UNION ALL
         SELECT 0, client_id, org_id, account, message_id, message_sent,
                disconnected_at, queue_partition, queue_offset, NULL, NULL
           FROM disconnected_clients WHERE client_id IN (SELECT value FROM json_each(?1))",
    )
    .bind(row::client_ids_json(clients))
    .fetch_all(pool)
    .await?;
    let mut states: HashMap<ClientId, StoredState> = HashMap::with_capacity(rows.len());
    for row in &rows {
        let org_id: String = row.try_get("org_id")?;
        let tenant = tenant_from_columns(&org_id, row.try_get("account")?);
        let message_id = row::message_id(row)?;
        let message_sent_at = row::timestamp(row, "message_sent")?;
        let received_at = row::received_at(row, "presence_received_at")?;
        let state = states.entry(row::client_id(row)?).or_default();
        if row.try_get::<i64, _>("connected")? == 1 {
            state.connection = Some(StoredConnection {
                message_id,
                message_sent_at,
                tenant,
                received_at,
                offline_message_overruled: row::optional_timestamp(row, "offline_received_at")?
                    .is_some(),
                last_heartbeat_at: row::optional_timestamp(row, "last_heartbeat_at")?,
            });
        } else {
            state.disconnect = Some(StoredDisconnect {
                message_id,
                message_sent_at,
                tenant,
                received_at,
            });
        }
    }
    Ok(states)
}

pub(super) async fn find_connection_for_org(
    pool: &SqlitePool,
    org: &OrgId,
    client: &ClientId,
) -> Result<Option<Connection>, StoreError> {
    const FIND_CONNECTION: &str = concatcp!(
        "SELECT ",
        CONNECTION_COLUMNS,
        " FROM connections WHERE client_id = ? AND org_id = ?"
    );
    let row = sqlx::query(FIND_CONNECTION)
        .bind(client.as_str())
        .bind(org.as_str())
        .fetch_optional(pool)
        .await?;
    row.as_ref().map(row::connection).transpose()
}

pub(super) async fn find_connections_for_org(
    pool: &SqlitePool,
    org: &OrgId,
    clients: &[ClientId],
) -> Result<Vec<Connection>, StoreError> {
    const FIND_CONNECTIONS: &str = concatcp!(
        "SELECT ",
        CONNECTION_COLUMNS,
        " FROM connections
          WHERE org_id = ? AND client_id IN (SELECT value FROM json_each(?))"
    );
    let rows = sqlx::query(FIND_CONNECTIONS)
        .bind(org.as_str())
        .bind(row::client_ids_json(clients))
        .fetch_all(pool)
        .await?;
    rows.iter().map(row::connection).collect()
}

pub(super) async fn find_org_or_satellite_connection(
    pool: &SqlitePool,
    org: &OrgId,
    client: &ClientId,
) -> Result<Option<Connection>, StoreError> {
    const FIND_CONNECTION_IN_ANY_ORG: &str = concatcp!(
        "SELECT ",
        CONNECTION_COLUMNS,
        " FROM connections WHERE client_id = ? AND org_id <> ''"
    );
    let row = sqlx::query(FIND_CONNECTION_IN_ANY_ORG)
        .bind(client.as_str())
        .fetch_optional(pool)
        .await?;
    let connection = row.as_ref().map(row::connection).transpose()?;
    Ok(connection
        .filter(|connection| connection.tenant.org_id == *org || connection.is_satellite()))
}

pub(super) async fn list_client_ids(
    pool: &SqlitePool,
    after_client: Option<&ClientId>,
    limit: u32,
) -> Result<Vec<ClientId>, StoreError> {
    let rows = sqlx::query(
        "SELECT client_id FROM connections WHERE client_id > ? ORDER BY client_id LIMIT ?",
    )
    .bind(after_client.map_or("", ClientId::as_str))
    .bind(limit)
    .fetch_all(pool)
    .await?;
    rows.iter().map(row::client_id).collect()
}
