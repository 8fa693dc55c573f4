//! The tenant of a client.

use super::OrgId;

/// An organization and its account number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// The organization.
    pub org_id: OrgId,
    /// The account number; empty if the organization has none.
    pub account: String,
}
