//! Connections of connected clients, as the API shows them.

use async_trait::async_trait;

use domain::{ClientId, Connection, OrgId};

use crate::error::Result;
use crate::page::{ClientPage, ConnectionPage, PageRequest};

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

    /// Finds the connections of those `clients` that belong to the organization. Runs one query.
    /// The order of the connections is undefined.
    async fn find_connections_for_org(
        &self,
        org: &OrgId,
        clients: &[ClientId],
    ) -> Result<Vec<Connection>>;

    /// Like [`Self::find_connection_for_org`], but also finds a Satellite server of another
    /// organization.
    async fn find_org_or_satellite_connection(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>>;

    /// Lists a page of an organization's connections, ordered by client id.
    async fn list_connections_for_org(
        &self,
        org: &OrgId,
        request: &PageRequest,
    ) -> Result<ConnectionPage>;

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
