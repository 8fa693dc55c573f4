//! The status of clients in embedded mode: a client is connected only if the broker has a connection of
//! the client now.
//!
//! The database says the same, except after a restart: until `broker.reconnect_grace` has passed, it
//! still contains the connections of clients that have not reconnected. Nobody can send a message to
//! these clients, so their status is "disconnected". Lists contain them until the startup sweep.

use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;

use broker::Broker;
use domain::{ClientId, Connection, OrgId};
use store::{
    ClientPage, ConnectionRepository, ConnectionVisitor, PageRequest, Result as StoreResult,
};

/// Finds only the connections of clients that are connected to the embedded broker.
pub(super) struct LiveStatus {
    pub connections: Arc<dyn ConnectionRepository>,
    pub broker: Broker,
}

impl LiveStatus {
    fn is_connected(&self, connection: &Connection) -> bool {
        self.broker.is_connected(&connection.client_id)
    }
}

#[async_trait]
impl ConnectionRepository for LiveStatus {
    async fn find_connection_for_org(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> StoreResult<Option<Connection>> {
        let connection = self
            .connections
            .find_connection_for_org(org, client)
            .await?;
        Ok(connection.filter(|connection| self.is_connected(connection)))
    }

    async fn visit_connections_of_clients(
        &self,
        org: &OrgId,
        clients: &[ClientId],
        visit: ConnectionVisitor<'_>,
    ) -> StoreResult<()> {
        let mut visit_connected = |connection: Connection| {
            if self.is_connected(&connection) {
                visit(connection)
            } else {
                ControlFlow::Continue(())
            }
        };
        self.connections
            .visit_connections_of_clients(org, clients, &mut visit_connected)
            .await
    }

    async fn find_org_or_satellite_connection(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> StoreResult<Option<Connection>> {
        let connection = self
            .connections
            .find_org_or_satellite_connection(org, client)
            .await?;
        Ok(connection.filter(|connection| self.is_connected(connection)))
    }

    // A page must contain as many connections as were requested, and the number of all connections.
    // Therefore lists show what the database contains.

    async fn visit_connections_for_org(
        &self,
        org: &OrgId,
        request: &PageRequest,
        visit: ConnectionVisitor<'_>,
    ) -> StoreResult<u64> {
        self.connections
            .visit_connections_for_org(org, request, visit)
            .await
    }

    async fn list_clients_for_org(
        &self,
        org: &OrgId,
        offset: u64,
        limit: u64,
    ) -> StoreResult<ClientPage> {
        self.connections
            .list_clients_for_org(org, offset, limit)
            .await
    }

    async fn list_all_clients(&self, offset: u64, limit: u64) -> StoreResult<ClientPage> {
        self.connections.list_all_clients(offset, limit).await
    }

    async fn mark_disconnected(&self, connection: &Connection) -> StoreResult<bool> {
        self.connections.mark_disconnected(connection).await
    }
}
