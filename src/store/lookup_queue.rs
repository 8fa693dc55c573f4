//! Types of the tenant lookup jobs: rows that are due for a lookup, and lookup results.

use crate::domain::{ClientId, ClientInfo, ClientKind, Dialect, OrgId, Tenant, Timestamp};

/// Why a row is due for a tenant lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupReason {
    /// The host has a tenant, and its latest report to inventory is old or pending. The oldest
    /// report is first.
    InventoryRefresh {
        /// Selects hosts whose latest report was delivered before this time.
        before: Timestamp,
    },
    /// The client is tenantless. The earliest lookup is first.
    MissingTenant {
        /// Selects clients whose latest lookup was before this time.
        before: Timestamp,
        /// Selects clients with fewer failed lookups than this.
        max_attempts: u32,
    },
}

/// A row that is due for a tenant lookup. Other jobs skip the row until the claim ends.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedConnection {
    /// Client id.
    pub client_id: ClientId,
    /// The tenant, if known.
    pub tenant: Option<Tenant>,
    /// Dialect of the latest online message.
    pub dialect: Dialect,
    /// Host or proxy.
    pub kind: ClientKind,
    /// What the client reports about itself.
    pub info: ClientInfo,
    /// Version of the row. A lookup result is discarded if the row has changed since.
    pub row_version: Timestamp,
}

/// Result of the tenant lookup for one row.
#[derive(Debug, Clone, PartialEq)]
pub struct LookupResult {
    /// Client id.
    pub client_id: ClientId,
    /// The [`ClaimedConnection::row_version`] that the lookup was made for.
    pub row_version: Timestamp,
    /// What the lookup returned.
    pub outcome: LookupOutcome,
}

/// What a tenant lookup returned.
#[derive(Debug, Clone, PartialEq)]
pub enum LookupOutcome {
    /// The client has a tenant.
    Found {
        /// The tenant.
        tenant: Tenant,
        /// Time at which the report to inventory was delivered. `None` leaves the stored time
        /// unchanged.
        reported_to_inventory_at: Option<Timestamp>,
        /// False if inventory does not accept this host. The host is then no longer reported.
        inventory_eligible: bool,
    },
    /// The client has no tenant. This result is definitive.
    NotFound,
    /// The lookup was not possible. The row stays unchanged and due.
    Unavailable,
}

/// Numbers of tenantless clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantlessCounts {
    /// Clients that will be looked up again.
    pub pending: u64,
    /// Clients that reached the maximum number of failed lookups.
    pub exhausted: u64,
    /// Time of the latest lookup of the pending client that has waited longest.
    pub oldest_lookup: Option<Timestamp>,
}

/// A tenantless client, as operator commands show it.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantlessClient {
    /// Client id.
    pub client_id: ClientId,
    /// Time of the latest lookup that found no tenant.
    pub last_lookup: Option<Timestamp>,
    /// Number of lookups by the tenantless job that found no tenant.
    pub failed_lookups: u32,
    /// Receive time of the latest online message.
    pub online_received_at: Timestamp,
}

/// An organization and the number of its connections.
pub type OrgCount = (OrgId, u64);
