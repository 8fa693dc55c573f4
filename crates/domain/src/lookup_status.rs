//! The status of a tenant lookup.

/// The result of a tenant lookup, without the tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LookupStatus {
    /// The client has an organization.
    Found,
    /// The lookup service confirmed that the client has no organization.
    NotFound,
    /// The lookup service sent no valid response. The client's tenant is unknown.
    Unavailable,
}

impl LookupStatus {
    /// Returns the name of the status in metric labels and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::NotFound => "not_found",
            Self::Unavailable => "unavailable",
        }
    }
}

impl std::fmt::Display for LookupStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
