//! To whom a connection belongs.

use super::OrgId;

/// An organisation and its account number, which may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// The organisation.
    pub org_id: OrgId,
    /// The account number; `""` where the organisation has none.
    pub account: String,
}
