//! Types of the tenant lookup jobs: rows that are due for a lookup, and lookup results.

use domain::{ClientId, ClientInfo, ClientKind, Dialect, OrgId, Tenant, Timestamp};

/// Why rows are due for a tenant lookup, and which rows are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupReason {
    /// Selects hosts with a tenant whose latest report to inventory is old or pending. Hosts with the
    /// oldest report come first.
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
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedConnection {
    /// Client id.
    pub client_id: ClientId,
    /// The client's tenant. `None` for a tenantless client.
    pub tenant: Option<Tenant>,
    /// Dialect of the latest online message.
    pub dialect: Dialect,
    /// Whether the client is a host or a proxy.
    pub kind: ClientKind,
    /// Facts, dispatchers, tags, name and version that the client sent.
    pub info: ClientInfo,
    /// Version of the row at the time of the claim. If the row changes after the claim, the lookup
    /// result is discarded.
    pub row_version: Timestamp,
}

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
    },
    /// The client has no tenant. This result is definitive.
    NotFound,
    /// The lookup was not possible. The row stays unchanged and remains due for a lookup.
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

/// An organization and the number of its connections.
pub type OrgCount = (OrgId, u64);
