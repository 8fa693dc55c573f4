//! Rate limits of the API: per key, per organization and per account.

use std::time::Duration;

use crate::config::ApiRateLimit;
use crate::rate_limit::RateLimiter;

/// The rate limiters of the API. `None` means no limit.
pub(super) struct RateLimits {
    per_key: Option<RateLimiter<String>>,
    per_organization: Option<RateLimiter<String>>,
    /// Rate limiter for account numbers. Account numbers and organization ids have separate
    /// limiters, because an account number may equal the id of another organization.
    per_account: Option<RateLimiter<String>>,
}

/// The tenant whose rate limit a request counts against.
#[derive(Debug, Clone, Copy)]
pub(super) enum RateLimitSubject<'a> {
    Organization(&'a str),
    Account(&'a str),
    /// A management request, which is not for one tenant. It counts only against the rate limit of
    /// the key.
    AllTenants,
}

impl<'a> RateLimitSubject<'a> {
    /// Returns the organization id or the account number. Returns `""` for management requests.
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
            per_key: limiter(config.per_key_burst, config.per_key),
            per_organization: limiter(config.per_org_burst, config.per_org),
            per_account: limiter(config.per_org_burst, config.per_org),
        }
    }

    /// Counts one request. `key_name` is `None` if the caller authenticated with an identity.
    ///
    /// # Errors
    /// If a rate limit is exceeded. The error is the time until the next request is allowed.
    pub fn check(
        &self,
        key_name: Option<&str>,
        subject: RateLimitSubject<'_>,
    ) -> Result<(), Duration> {
        let tenant_limiter = match subject {
            RateLimitSubject::Organization(_) => &self.per_organization,
            RateLimitSubject::Account(_) => &self.per_account,
            RateLimitSubject::AllTenants => &None,
        };
        // The tenant's limit is checked before the key's limit. A request over the tenant's limit
        // must not count against the key, because requests for other tenants use the same key.
        if let Some(limiter) = tenant_limiter {
            limiter.check(subject.tenant())?;
        }
        if let (Some(limiter), Some(key_name)) = (&self.per_key, key_name) {
            limiter.check(key_name)?;
        }
        Ok(())
    }
}
