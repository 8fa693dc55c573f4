//! Rows that an updater is to look at, and what came of it.

use crate::domain::{ClientId, ClientInfo, ClientKind, Dialect, OrgId, Tenant, Timestamp};

/// Which rows are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupReason {
    /// Hosts with a tenant that inventory last heard of before this moment, the longest ago first.
    InventoryRefresh {
        /// The moment.
        before: Timestamp,
    },
    /// Clients without a tenant that were last looked up before this moment, the longest ago first,
    /// and not in vain this often.
    MissingTenant {
        /// The moment.
        before: Timestamp,
        /// After so many definite failures a client is left alone.
        max_attempts: u32,
    },
}

/// A row that is due. It is claimed: nobody else is given it for a while.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedConnection {
    /// Who.
    pub client_id: ClientId,
    /// To whom it belongs, if to anybody.
    pub tenant: Option<Tenant>,
    /// How it speaks.
    pub dialect: Dialect,
    /// What it is.
    pub kind: ClientKind,
    /// What it said of itself.
    pub reported: ClientInfo,
    /// The row as it was then: a result is dropped if it has changed since.
    pub version: Timestamp,
}

/// What an updater found out about a row.
#[derive(Debug, Clone, PartialEq)]
pub struct LookupResult {
    /// Who.
    pub client_id: ClientId,
    /// Of which version of the row.
    pub version: Timestamp,
    /// What.
    pub outcome: LookupOutcome,
}

/// What is to be written.
#[derive(Debug, Clone, PartialEq)]
pub enum LookupOutcome {
    /// It belongs to this one, and inventory heard of it, if it did.
    Found {
        /// The tenant.
        tenant: Tenant,
        /// When inventory received it; the row says what it said if it did not.
        reported_to_inventory_at: Option<Timestamp>,
        /// Inventory would refuse it: it is not owed.
        is_refused: bool,
    },
    /// A definite answer: it belongs to nobody.
    NotFound,
    /// No answer: the row is as it was, and due.
    Unavailable,
}

/// How clients without a tenant stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantlessCounts {
    /// Will be looked up again.
    pub waiting: u64,
    /// Were looked up in vain as often as they may be.
    pub exhausted: u64,
    /// The one that waits longest was last looked up then.
    pub oldest: Option<Timestamp>,
}

/// A client without a tenant, for operators.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantlessClient {
    /// Who.
    pub client_id: ClientId,
    /// When it was last looked up in vain.
    pub looked_up: Option<Timestamp>,
    /// How often.
    pub failures: u32,
    /// When it was last heard of.
    pub online_received_at: Timestamp,
}

/// Connections of an organisation, counted.
pub type OrgCount = (OrgId, u64);
