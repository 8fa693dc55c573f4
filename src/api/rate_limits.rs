//! How often a key may call, and how often an organisation may be called for.

use std::time::Duration;

use crate::config::ApiRateLimit;
use crate::rate_limit::RateLimiter;

/// What has been used of the limits. Off where there is none.
pub(super) struct RateLimits {
    keys: Option<RateLimiter<String>>,
    organisations: Option<RateLimiter<String>>,
    /// Of their own: an account's number may be another organisation's.
    accounts: Option<RateLimiter<String>>,
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

impl RateLimits {
    pub fn new(limits: &ApiRateLimit) -> Self {
        let buckets = |burst, rate| (rate > 0.0).then(|| RateLimiter::new(burst, rate));
        Self {
            keys: buckets(limits.per_key_burst, limits.per_key),
            organisations: buckets(limits.per_org_burst, limits.per_org),
            accounts: buckets(limits.per_org_burst, limits.per_org),
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
