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
use domain::{ClientId, Connection, OrgId, Timestamp};
use store::{
    ClientPage, ClientRecord, ClientRepository, ClientStatus, ConnectionRepository,
    ConnectionVisitor, HistoryEntry, PageRequest, Result as StoreResult, StoredDeadLetter,
    TrimmedHistory,
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

/// Changes the status of clients that are not connected to the embedded broker to disconnected.
pub(super) struct LiveClients {
    pub clients: Arc<dyn ClientRepository>,
    pub broker: Broker,
}

impl LiveClients {
    fn with_live_status(&self, mut record: ClientRecord) -> ClientRecord {
        if record.status == ClientStatus::Connected && !self.broker.is_connected(&record.client_id)
        {
            // The reason is not known before the startup sweep or the last will is recorded.
            record.status = ClientStatus::Disconnected {
                at: record.last_seen,
                reason: None,
            };
        }
        record
    }
}

#[async_trait]
impl ClientRepository for LiveClients {
    async fn find_client_for_org(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> StoreResult<Option<ClientRecord>> {
        let record = self.clients.find_client_for_org(org, client).await?;
        Ok(record.map(|record| self.with_live_status(record)))
    }

    async fn find_client(&self, client: &ClientId) -> StoreResult<Option<ClientRecord>> {
        let record = self.clients.find_client(client).await?;
        Ok(record.map(|record| self.with_live_status(record)))
    }

    async fn list_history(
        &self,
        org: Option<&OrgId>,
        client: &ClientId,
        before_number: Option<u64>,
        limit: u32,
    ) -> StoreResult<Vec<HistoryEntry>> {
        self.clients
            .list_history(org, client, before_number, limit)
            .await
    }

    async fn search_clients(&self, text: &str, limit: u32) -> StoreResult<Vec<ClientRecord>> {
        let records = self.clients.search_clients(text, limit).await?;
        let records = records.into_iter();
        Ok(records
            .map(|record| self.with_live_status(record))
            .collect())
    }

    async fn recent_dead_letters(
        &self,
        client: &ClientId,
        limit: u32,
    ) -> StoreResult<Vec<StoredDeadLetter>> {
        self.clients.recent_dead_letters(client, limit).await
    }

    async fn delete_history_before(&self, time: Timestamp, limit: u32) -> StoreResult<u64> {
        self.clients.delete_history_before(time, limit).await
    }

    async fn trim_history(
        &self,
        after_client: Option<&ClientId>,
        clients_per_call: u32,
        max_entries_per_client: u32,
    ) -> StoreResult<TrimmedHistory> {
        self.clients
            .trim_history(after_client, clients_per_call, max_entries_per_client)
            .await
    }
}
