//! The queue of rows that are due for a tenant lookup: claims, lookup results and tenantless
//! clients.

use std::ops::ControlFlow;

use async_trait::async_trait;

use domain::{ClientId, ClientInfo, ClientKind, DialectName, Tenant, Timestamp};

use crate::error::Result;

/// Why rows are due for a tenant lookup, and which rows are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupReason {
    /// Selects hosts with a tenant whose latest report to inventory is old or pending. Hosts with
    /// the oldest report come first.
    InventoryRefresh {
        /// Selects hosts whose latest report was delivered before this time.
        reported_before: Timestamp,
    },
    /// Selects tenantless clients. Clients with the oldest lookup come first.
    MissingTenant {
        /// Selects clients whose latest lookup was before this time.
        looked_up_before: Timestamp,
        /// Selects clients whose number of failed lookups is less than this number.
        max_attempts: u32,
    },
}

/// A row that a job has claimed for a tenant lookup. Other jobs skip the row until the claim ends.
///
/// The facts of the client are not included, because the facts of all claimed rows can need gigabytes
/// of memory. [`LookupQueueRepository::visit_client_details`] reads them.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedConnection {
    /// Client id.
    pub client_id: ClientId,
    /// The client's tenant. `None` for a tenantless client.
    pub tenant: Option<Tenant>,
    /// Version of the row at the time of the claim. If the row changes after the claim, the lookup
    /// result is discarded.
    pub row_version: Timestamp,
}

/// The part of a client's row that a report to inventory needs.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientDetails {
    /// Client id.
    pub client_id: ClientId,
    /// Dialect of the latest online message.
    pub dialect: DialectName,
    /// Whether the client is a host or a proxy.
    pub kind: ClientKind,
    /// Facts, dispatchers, tags, name and version that the client sent.
    pub info: ClientInfo,
    /// Version of the row. It differs from [`ClaimedConnection::row_version`] if the row has changed
    /// after the claim.
    pub row_version: Timestamp,
}

/// Receives the details of clients, one after the other. If it returns [`ControlFlow::Break`], the
/// query ends and the following rows are not read.
///
/// A database connection is in use until the last call, so this function must not block.
pub type ClientDetailsVisitor<'a> = &'a mut (dyn FnMut(ClientDetails) -> ControlFlow<()> + Send);

/// Result of the tenant lookup for one row.
#[derive(Debug, Clone, PartialEq)]
pub struct LookupResult {
    /// Client id.
    pub client_id: ClientId,
    /// The [`ClaimedConnection::row_version`] of the row when the row was claimed.
    pub row_version: Timestamp,
    /// Outcome of the lookup.
    pub outcome: LookupOutcome,
}

/// Outcome of a tenant lookup.
#[derive(Debug, Clone, PartialEq)]
pub enum LookupOutcome {
    /// The client has a tenant.
    Found {
        /// The client's tenant.
        tenant: Tenant,
        /// Time at which the report to inventory was delivered. `None` leaves the stored time
        /// unchanged.
        reported_to_inventory_at: Option<Timestamp>,
        /// False if inventory does not accept this host. The host is then no longer reported.
        inventory_eligible: bool,
        /// Whether a report to inventory was sent but not delivered. The next run of a job then
        /// claims the row after the rows without a failure.
        report_failed: bool,
    },
    /// The client has no tenant. This result is definitive.
    NotFound,
    /// The lookup was not possible. The row keeps its tenant and remains due for a lookup. The next
    /// run of a job claims the row after the rows without a failure.
    Unavailable,
}

/// Numbers of tenantless clients, and the time of their oldest lookup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantlessCounts {
    /// Number of clients that will be looked up again.
    pub pending_clients: u64,
    /// Number of clients that reached the maximum number of failed lookups.
    pub exhausted_clients: u64,
    /// Each pending client has a last lookup. This field is the time of the oldest of these
    /// lookups. `None` if no client is pending.
    pub oldest_lookup_at: Option<Timestamp>,
}

/// A tenantless client in the output of operator commands.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantlessClient {
    /// Client id.
    pub client_id: ClientId,
    /// Time of the client's last lookup, which found no tenant.
    pub last_lookup_at: Option<Timestamp>,
    /// Number of lookups by the tenantless job that found no tenant.
    pub failed_lookups: u32,
    /// Receive time of the latest online message.
    pub online_received_at: Timestamp,
}

/// Claims rows for tenant lookups and writes the results, for the tenant lookup jobs and operator
/// commands. API endpoints must not use this repository, because it returns tenantless clients.
#[async_trait]
pub trait LookupQueueRepository: Send + Sync + 'static {
    /// Claims rows that are due for a tenant lookup. Other jobs skip the rows until `claim_until`.
    ///
    /// Claims only rows without a claim and rows whose claim ended before `claims_ended_before`.
    /// Claims rows whose latest lookup by a job failed only if no other row is due, oldest failure
    /// first. Otherwise rows whose lookup always fails would come first in every run.
    async fn claim_for_lookup(
        &self,
        reason: LookupReason,
        limit: u32,
        claims_ended_before: Timestamp,
        claim_until: Timestamp,
    ) -> Result<Vec<ClaimedConnection>>;

    /// Reads the details of these clients, and passes them to `visit` as soon as they are read. The
    /// order of the clients is undefined. Skips clients without a row in `connections`.
    async fn visit_client_details(
        &self,
        clients: &[ClientId],
        visit: ClientDetailsVisitor<'_>,
    ) -> Result<()>;

    /// Counts the rows that are due for a tenant lookup and not claimed at `now`.
    async fn count_due_rows(&self, reason: LookupReason, now: Timestamp) -> Result<u64>;

    /// Writes the results of tenant lookups, ends the claims of the rows, and returns the number of
    /// changed rows.
    ///
    /// Skips rows that changed since they were claimed. The returned number does not include rows
    /// with [`LookupOutcome::Unavailable`].
    async fn save_lookup_results(&self, results: &[LookupResult], now: Timestamp) -> Result<u64>;

    /// Ends claims without a result. Skips rows whose claim does not end at `claim_end`, because
    /// the claim has ended already or belongs to another job. Returns the number of ended claims.
    async fn release_claims(
        &self,
        clients: &[ClientId],
        claim_end: Timestamp,
        now: Timestamp,
    ) -> Result<u64>;

    /// Counts the tenantless clients. A client with `max_attempts` or more failed lookups counts as
    /// exhausted.
    async fn count_tenantless_clients(&self, max_attempts: u32) -> Result<TenantlessCounts>;

    /// Lists tenantless clients. The client whose last lookup is oldest comes first.
    async fn list_tenantless_clients(&self, limit: u32) -> Result<Vec<TenantlessClient>>;

    /// Makes tenantless clients immediately due for a lookup and resets their number of failed
    /// lookups. Returns the number of changed clients.
    async fn reset_tenantless_clients(&self, clients: &[ClientId]) -> Result<u64>;

    /// Like [`Self::reset_tenantless_clients`], for the first `limit` tenantless clients after the
    /// client id `after_client`. Returns the ids of the changed clients, in ascending order.
    async fn reset_tenantless_clients_after(
        &self,
        after_client: Option<&ClientId>,
        limit: u32,
    ) -> Result<Vec<ClientId>>;

    /// Deletes the rows of tenantless clients. Skips clients that have a tenant. Returns the number
    /// of deleted rows.
    async fn delete_tenantless_clients(&self, clients: &[ClientId]) -> Result<u64>;
}
