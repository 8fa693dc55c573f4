//! How often a key may call, and how often an organisation may be called for.

use std::time::Duration;

use crate::buckets::Buckets;
use crate::config::ApiLimits;

/// What has been used of the limits. Off where there is none.
pub(super) struct Limits {
    keys: Option<Buckets<String>>,
    organisations: Option<Buckets<String>>,
    /// Of their own: an account's number may be another organisation's.
    accounts: Option<Buckets<String>>,
}

/// On whose behalf a request is made.
#[derive(Debug, Clone, Copy)]
pub(super) enum For<'a> {
    Organisation(&'a str),
    Account(&'a str),
    /// Management is for no one tenant.
    Everybody,
}

impl<'a> For<'a> {
    /// As the log names it.
    pub fn name(self) -> &'a str {
        match self {
            Self::Organisation(name) | Self::Account(name) => name,
            Self::Everybody => "",
        }
    }
}

impl Limits {
    pub fn new(limits: &ApiLimits) -> Self {
        let buckets = |burst, rate| (rate > 0.0).then(|| Buckets::new(burst, rate));
        Self {
            keys: buckets(limits.per_key_burst, limits.per_key),
            organisations: buckets(limits.per_organisation_burst, limits.per_organisation),
            accounts: buckets(limits.per_organisation_burst, limits.per_organisation),
        }
    }

    /// One more request, with a key if one is used.
    ///
    /// # Errors
    /// When it is one too many: how long until it is not.
    pub fn take(&self, key: Option<&str>, behalf: For<'_>) -> Result<(), Duration> {
        let tenants = match behalf {
            For::Organisation(_) => &self.organisations,
            For::Account(_) => &self.accounts,
            For::Everybody => &None,
        };
        // The tenant's first: what it may not do costs the key nothing, which others use, too.
        if let Some(buckets) = tenants {
            buckets.take(behalf.name())?;
        }
        if let (Some(buckets), Some(key)) = (&self.keys, key) {
            buckets.take(key)?;
        }
        Ok(())
    }
}
