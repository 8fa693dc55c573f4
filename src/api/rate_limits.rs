//! Rate limits of the API: per key, per organization and per account.

use std::time::Duration;

use crate::config::ApiRateLimit;
use crate::rate_limit::RateLimiter;

/// The configured rate limiters. `None` means no limit.
pub(super) struct RateLimits {
    keys: Option<RateLimiter<String>>,
    organizations: Option<RateLimiter<String>>,
    /// Separate from `organizations`: an account number may equal the id of another organization.
    accounts: Option<RateLimiter<String>>,
}

/// The tenant whose rate limit a request counts against.
#[derive(Debug, Clone, Copy)]
pub(super) enum RateLimitSubject<'a> {
    Organization(&'a str),
    Account(&'a str),
    /// Management requests have no tenant and only count against the key.
    AllTenants,
}

impl<'a> RateLimitSubject<'a> {
    /// Returns the organization id or the account number; `""` for management requests.
    pub fn tenant(self) -> &'a str {
        match self {
            Self::Organization(tenant) | Self::Account(tenant) => tenant,
            Self::AllTenants => "",
        }
    }
}

impl RateLimits {
    pub fn new(config: &ApiRateLimit) -> Self {
        let limiter = |burst, rate| (rate > 0.0).then(|| RateLimiter::new(burst, rate));
        Self {
            keys: limiter(config.per_key_burst, config.per_key),
            organizations: limiter(config.per_org_burst, config.per_org),
            accounts: limiter(config.per_org_burst, config.per_org),
        }
    }

    /// Counts one request. `key` is `None` if the caller authenticated with an identity.
    ///
    /// # Errors
    /// If a limit is exceeded: the time until the next request is allowed.
    pub fn check(&self, key: Option<&str>, subject: RateLimitSubject<'_>) -> Result<(), Duration> {
        let tenant_limiter = match subject {
            RateLimitSubject::Organization(_) => &self.organizations,
            RateLimitSubject::Account(_) => &self.accounts,
            RateLimitSubject::AllTenants => &None,
        };
        // The tenant's limit comes first: a request rejected there must not count against the key,
        // because other tenants share the key.
        if let Some(limiter) = tenant_limiter {
            limiter.check(subject.tenant())?;
        }
        if let (Some(limiter), Some(key)) = (&self.keys, key) {
            limiter.check(key)?;
        }
        Ok(())
    }
}
