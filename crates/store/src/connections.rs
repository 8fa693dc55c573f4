//! Connections of connected clients, as the API shows them.

use std::ops::ControlFlow;

use async_trait::async_trait;

use domain::{ClientId, Connection, OrgId};

use crate::error::Result;
use crate::page::{ClientPage, ConnectionPage, PageRequest};

/// Receives the connections of a query, one after the other. If it returns
/// [`ControlFlow::Break`], the query ends and the following connections are not read.
///
/// A database connection is in use until the last call, so this function must not block.
pub type ConnectionVisitor<'a> = &'a mut (dyn FnMut(Connection) -> ControlFlow<()> + Send);

/// Reads connections, and ends the connection of a client, for the API.
///
/// Methods that serve API callers take the organization as the first argument. A tenantless client
/// has no [`OrgId`], so these methods cannot return a tenantless client.
#[async_trait]
pub trait ConnectionRepository: Send + Sync + 'static {
    /// Finds a connection of an organization.
    async fn find_connection_for_org(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>>;

    /// Finds the connections of those `clients` that belong to the organization. Runs one query, and
    /// passes each connection to `visit` as soon as it is read. The order of the connections is
    /// undefined.
    async fn visit_connections_of_clients(
        &self,
        org: &OrgId,
        clients: &[ClientId],
        visit: ConnectionVisitor<'_>,
    ) -> Result<()>;

    /// Like [`Self::find_connection_for_org`], but also finds a Satellite server of another
    /// organization.
    async fn find_org_or_satellite_connection(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>>;

    /// Reads a page of an organization's connections, ordered by client id. Passes each connection
    /// to `visit` as soon as it is read, so the page is never in memory as a whole.
    ///
    /// Returns the number of connections that match the filter, on all pages. Returns 0 if the
    /// request has [`PageStart::After`](crate::PageStart::After).
    async fn visit_connections_for_org(
        &self,
        org: &OrgId,
        request: &PageRequest,
        visit: ConnectionVisitor<'_>,
    ) -> Result<u64>;

    /// Like [`Self::visit_connections_for_org`], but returns all connections of the page. The
    /// connections of a page can need gigabytes of memory, so only tests use this method.
    async fn list_connections_for_org(
        &self,
        org: &OrgId,
        request: &PageRequest,
    ) -> Result<ConnectionPage> {
        let mut connections = Vec::new();
        let mut visit = |connection| {
            connections.push(connection);
            ControlFlow::Continue(())
        };
        let total_count = self.visit_connections_for_org(org, request, &mut visit);
        Ok(ConnectionPage {
            total_count: total_count.await?,
            connections,
        })
    }

    /// Lists a page of an organization's connected clients, ordered by client id.
    async fn list_clients_for_org(
        &self,
        org: &OrgId,
        offset: u64,
        limit: u64,
    ) -> Result<ClientPage>;

    /// Lists a page of the connected clients that have a tenant, ordered by organization and client
    /// id. Only management endpoints may call this method.
    async fn list_all_clients(&self, offset: u64, limit: u64) -> Result<ClientPage>;

    /// Ends a connection whose client received a disconnect command. Returns whether the connection
    /// was ended.
    ///
    /// Has no effect if the client has reconnected since `connection` was read: if it has sent
    /// another online message, or a heartbeat has restored its connection. Other changes of the row
    /// do not matter, because no offline message follows a disconnect command.
    ///
    /// The time of the disconnect is the time of the database. A later heartbeat restores the
    /// client. If the client is already disconnected, the time of its disconnect becomes later.
    async fn mark_disconnected(&self, connection: &Connection) -> Result<bool>;
}
