//! How often a key may call, and how often an organisation may be called for.

use std::time::Duration;

use crate::buckets::Buckets;
use crate::config::ApiLimits;

/// What has been used of the limits. Off where there is none.
pub(super) struct Limits {
    keys: Option<Buckets<String>>,
    tenants: Option<Buckets<String>>,
}

impl Limits {
    pub fn new(limits: &ApiLimits) -> Self {
        let buckets = |burst, rate| (rate > 0.0).then(|| Buckets::new(burst, rate));
        Self {
            keys: buckets(limits.per_key_burst, limits.per_key),
            tenants: buckets(limits.per_organisation_burst, limits.per_organisation),
        }
    }

    /// One more request with a key, if one is used, for a tenant, if it is for one.
    ///
    /// # Errors
    /// When it is one too many: how long until it is not.
    pub fn take(&self, key: Option<&str>, tenant: Option<&str>) -> Result<(), Duration> {
        // The tenant's first: what it may not do costs the key nothing, which others use, too.
        if let (Some(buckets), Some(tenant)) = (&self.tenants, tenant) {
            buckets.take(tenant)?;
        }
        if let (Some(buckets), Some(key)) = (&self.keys, key) {
            buckets.take(key)?;
        }
        Ok(())
    }
}
