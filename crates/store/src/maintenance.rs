//! Operation of the database: health, shutdown, retention, and counts over all organizations.

use async_trait::async_trait;

use domain::{ClientId, OrgId, Timestamp};

use crate::error::Result;

/// An organization and the number of its connections.
pub type OrgCount = (OrgId, u64);

/// Operates the database, for the runtime, the periodic jobs and operator commands. API endpoints
/// must not use this repository, because its methods are not limited to one organization.
#[async_trait]
pub trait MaintenanceRepository: Send + Sync + 'static {
    /// Checks that the database responds and has the schema of this version.
    async fn ping(&self) -> Result<()>;

    /// Closes all connections to the database. Every later call of any repository fails.
    async fn close(&self);

    /// Deletes the data of at most `limit` clients that disconnected before `time`. Returns the
    /// number of deleted clients. If the number is less than `limit`, no such client remains, except
    /// for clients that another transaction changes at this moment.
    async fn delete_clients_disconnected_before(&self, time: Timestamp, limit: u32) -> Result<u64>;

    /// Moves new entries of the search index to the part of the index that is quick to search. Without
    /// this call, writers and searches take longer. Does nothing if the database has no such index.
    async fn flush_search_index(&self) -> Result<()>;

    /// Lists the ids of connected clients in ascending order, including tenantless clients. Starts
    /// after the id `after_client`.
    async fn list_client_ids(
        &self,
        after_client: Option<&ClientId>,
        limit: u32,
    ) -> Result<Vec<ClientId>>;

    /// Counts the connections that have a tenant.
    async fn count_connections_with_tenant(&self) -> Result<u64>;

    /// Returns the number of connections of each organization, largest number first, and the number
    /// of tenantless connections. `limit` is the maximum number of organizations.
    async fn count_by_org(&self, limit: u32) -> Result<(Vec<OrgCount>, u64)>;
}
