//! Counts the "not found" results of clients that had a tenant. Each of these results would clear
//! the client's tenant.

use crate::TenantLookupOutcome;

/// If fewer clients were looked up, no mass loss is detected.
const MIN_LOOKED_UP_CLIENTS: u64 = 50;
/// Maximum percentage of "not found" clients. A higher percentage is a mass loss.
const MAX_NOT_FOUND_PERCENT: u64 = 20;

/// Counts the lookups of clients that had a tenant, and the "not found" results of these lookups.
#[derive(Debug, Clone, Copy, Default)]
pub struct MassLossCounter {
    lookup_count: u64,
    not_found_count: u64,
}

impl MassLossCounter {
    /// Creates a counter with the given counts.
    #[must_use]
    pub fn with_counts(lookup_count: u64, not_found_count: u64) -> Self {
        Self {
            lookup_count,
            not_found_count,
        }
    }

    /// Counts the lookup of a client that had a tenant. Does not count the outcome `Unavailable`.
    pub fn record_lookup(&mut self, outcome: &TenantLookupOutcome) {
        match outcome {
            TenantLookupOutcome::Found(_) => self.lookup_count += 1,
            TenantLookupOutcome::NotFound => {
                self.lookup_count += 1;
                self.not_found_count += 1;
            }
            TenantLookupOutcome::Unavailable => {}
        }
    }

    /// Returns whether too many clients would lose their tenant because of "not found" results.
    #[must_use]
    pub fn is_mass_loss(&self) -> bool {
        self.lookup_count >= MIN_LOOKED_UP_CLIENTS
            && self.not_found_count * 100 > self.lookup_count * MAX_NOT_FOUND_PERCENT
    }

    /// Logs that a mass loss was suppressed.
    pub fn log_suppressed_mass_loss(&self) {
        tracing::error!(
            not_found = self.not_found_count,
            looked_up = self.lookup_count,
            "mass tenant loss suppressed; set tenant.allow_mass_loss or run with --force to apply"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::{Identity, OrgId, Tenant};

    fn found_outcome() -> TenantLookupOutcome {
        TenantLookupOutcome::from_identity(Identity::for_tenant(&Tenant {
            org_id: OrgId::new("1").unwrap(),
            account: String::new(),
        }))
    }

    #[test]
    fn mass_loss_needs_at_least_50_clients() {
        let mut counter = MassLossCounter::default();
        for _ in 0..49 {
            counter.record_lookup(&TenantLookupOutcome::NotFound);
            counter.record_lookup(&TenantLookupOutcome::Unavailable);
        }
        assert!(!counter.is_mass_loss(), "49 clients are too few");
        counter.record_lookup(&TenantLookupOutcome::NotFound);
        assert!(counter.is_mass_loss());
    }

    #[test]
    fn mass_loss_needs_more_than_20_percent_not_found() {
        let mut counter = MassLossCounter::default();
        for _ in 0..80 {
            counter.record_lookup(&found_outcome());
        }
        for _ in 0..20 {
            counter.record_lookup(&TenantLookupOutcome::NotFound);
        }
        assert!(!counter.is_mass_loss(), "exactly 20 % is allowed");
        counter.record_lookup(&TenantLookupOutcome::NotFound);
        assert!(counter.is_mass_loss());
    }
}
