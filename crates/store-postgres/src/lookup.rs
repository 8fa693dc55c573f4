//! Queries that find clients by their client ids, and queries that list client ids.

use std::collections::HashMap;

use const_format::concatcp;
use sqlx::{PgConnection, PgPool, Row as _};

use super::row::{self, CONNECTION_COLUMNS};
use domain::{ClientId, Connection, OrgId};
use store::{StoreError, StoredConnection, StoredDisconnect, StoredState, tenant_from_columns};

pub(super) async fn load_client_states(
    pool: &PgPool,
    clients: &[ClientId],
) -> Result<HashMap<ClientId, StoredState>, StoreError> {
    let rows = sqlx::query(
        "SELECT true AS connected, client_id, org_id, COALESCE(account, '') AS account,
                message_id, message_sent,
                COALESCE(offline_received_at, online_received_at) AS presence_received_at,
                queue_partition, queue_offset, last_heartbeat_at, offline_received_at
           FROM connections WHERE client_id = ANY($1)
          UNION ALL
         SELECT false, client_id, org_id, account, message_id, message_sent,
                disconnected_at, queue_partition, queue_offset, NULL, NULL
           FROM disconnected_clients WHERE client_id = ANY($1)",
    )
    .bind(row::client_id_texts(clients))
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
        if row.try_get("connected")? {
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
    connection: &mut PgConnection,
    org: &OrgId,
    client: &ClientId,
) -> Result<Option<Connection>, StoreError> {
    const FIND_CONNECTION: &str = concatcp!(
        "SELECT ",
        CONNECTION_COLUMNS,
        " FROM connections WHERE client_id = $1 AND org_id = $2"
    );
    let row = sqlx::query(FIND_CONNECTION)
        .bind(client.as_str())
        .bind(org.as_str())
        .fetch_optional(connection)
        .await?;
    row.as_ref().map(row::connection).transpose()
}

pub(super) async fn find_connections_for_org(
    connection: &mut PgConnection,
    org: &OrgId,
    clients: &[ClientId],
) -> Result<Vec<Connection>, StoreError> {
    const FIND_CONNECTIONS: &str = concatcp!(
        "SELECT ",
        CONNECTION_COLUMNS,
        " FROM connections WHERE org_id = $1 AND client_id = ANY($2)"
    );
    let rows = sqlx::query(FIND_CONNECTIONS)
        .bind(org.as_str())
        .bind(row::client_id_texts(clients))
        .fetch_all(connection)
        .await?;
    rows.iter().map(row::connection).collect()
}

pub(super) async fn find_org_or_satellite_connection(
    connection: &mut PgConnection,
    org: &OrgId,
    client: &ClientId,
) -> Result<Option<Connection>, StoreError> {
    const FIND_CONNECTION_IN_ANY_ORG: &str = concatcp!(
        "SELECT ",
        CONNECTION_COLUMNS,
        " FROM connections WHERE client_id = $1 AND org_id <> ''"
    );
    let row = sqlx::query(FIND_CONNECTION_IN_ANY_ORG)
        .bind(client.as_str())
        .fetch_optional(connection)
        .await?;
    let connection = row.as_ref().map(row::connection).transpose()?;
    Ok(connection
        .filter(|connection| connection.tenant.org_id == *org || connection.is_satellite()))
}

pub(super) async fn list_client_ids(
    pool: &PgPool,
    after_client: Option<&ClientId>,
    limit: u32,
) -> Result<Vec<ClientId>, StoreError> {
    let rows = sqlx::query(
        "SELECT client_id FROM connections WHERE client_id > $1 ORDER BY client_id LIMIT $2",
    )
    .bind(after_client.map_or("", ClientId::as_str))
    .bind(i64::from(limit))
    .fetch_all(pool)
    .await?;
    rows.iter().map(row::client_id).collect()
}
