//! Rate limits of the API: per key, per organization and per account.

use std::time::Duration;

use super::ApiRateLimit;
use service::rate_limit::RateLimiter;

/// The rate limiters of the API. `None` means no limit.
pub(super) struct RateLimits {
    key_limiter: Option<RateLimiter<String>>,
    organization_limiter: Option<RateLimiter<String>>,
    /// Rate limiter for account numbers. Account numbers and organization ids have separate
    /// limiters, because an account number may equal the id of another organization.
    account_limiter: Option<RateLimiter<String>>,
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
        let new_limiter = |burst, rate| (rate > 0.0).then(|| RateLimiter::new(burst, rate));
        Self {
            key_limiter: new_limiter(config.per_key_burst, config.per_key),
            organization_limiter: new_limiter(config.per_org_burst, config.per_org),
            account_limiter: new_limiter(config.per_org_burst, config.per_org),
        }
    }

    /// Counts one request. `key_name` is `None` if the caller authenticated with an identity.
    ///
    /// # Errors
    /// If a rate limit is exceeded. The error is the time until the next request is allowed.
    pub fn count_request(
        &self,
        key_name: Option<&str>,
        subject: RateLimitSubject<'_>,
    ) -> Result<(), Duration> {
        let tenant_limiter = match subject {
            RateLimitSubject::Organization(_) => &self.organization_limiter,
            RateLimitSubject::Account(_) => &self.account_limiter,
            RateLimitSubject::AllTenants => &None,
        };
        // The tenant's limit is checked before the key's limit. A request over the tenant's limit
        // must not count against the key, because requests for other tenants use the same key.
        if let Some(limiter) = tenant_limiter {
            limiter.take_token(subject.tenant())?;
        }
        if let (Some(limiter), Some(key_name)) = (&self.key_limiter, key_name) {
            limiter.take_token(key_name)?;
        }
        Ok(())
    }
}
