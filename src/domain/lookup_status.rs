//! The result of a tenant lookup, without the tenant.

/// How a tenant lookup ended. Metrics, logs and summaries use these names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LookupStatus {
    /// The client has an organization.
    Found,
    /// The client definitely has no organization.
    NotFound,
    /// The lookup service gave no usable response. The client's tenant is unknown.
    Unavailable,
}

impl LookupStatus {
    /// Returns the name used as a metric label and in logs.
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
