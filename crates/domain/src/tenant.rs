//! The tenant of a client.

use super::OrgId;

/// An organization and its account number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// The organization id.
    pub org_id: OrgId,
    /// The account number. Empty if the organization has no account number.
    pub account: String,
}
