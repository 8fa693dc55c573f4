//! Counts how many of the looked-up clients would lose their tenant.

use crate::tenant::TenantLookupOutcome;

/// Minimum number of clients before the share of lost tenants is evaluated.
const MIN_CLIENTS: u64 = 50;
/// Largest share of clients that may lose their tenant, in percent.
const MAX_LOST_PERCENT: u64 = 20;

/// Counts lookups of clients that had a tenant, and how many of these clients would lose it.
#[derive(Debug, Clone, Copy, Default)]
pub struct MassLossCounter {
    looked_up: u64,
    not_found: u64,
}

impl MassLossCounter {
    /// Creates a counter with the given counts.
    #[must_use]
    pub fn with_counts(looked_up: u64, not_found: u64) -> Self {
        Self {
            looked_up,
            not_found,
        }
    }

    /// Counts the lookup of a client that had a tenant. `Unavailable` is not counted.
    pub fn record(&mut self, outcome: &TenantLookupOutcome) {
        match outcome {
            TenantLookupOutcome::Found(_) => self.looked_up += 1,
            TenantLookupOutcome::NotFound => {
                self.looked_up += 1;
                self.not_found += 1;
            }
            TenantLookupOutcome::Unavailable => {}
        }
    }

    /// Returns whether too many clients would lose their tenant.
    #[must_use]
    pub fn is_mass_loss(&self) -> bool {
        self.looked_up >= MIN_CLIENTS && self.not_found * 100 > self.looked_up * MAX_LOST_PERCENT
    }

    /// Logs that a mass loss was suppressed.
    pub fn log_suppressed(&self) {
        tracing::error!(
            not_found = self.not_found,
            looked_up = self.looked_up,
            "mass tenant loss suppressed; set tenant.allow_mass_loss or run with --force to apply"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Identity, OrgId, Tenant};

    fn found() -> TenantLookupOutcome {
        TenantLookupOutcome::from_identity(Identity::for_tenant(&Tenant {
            org_id: OrgId::new("1").unwrap(),
            account: String::new(),
        }))
    }

    #[test]
    fn mass_loss_needs_at_least_50_clients() {
        let mut counter = MassLossCounter::default();
        for _ in 0..49 {
            counter.record(&TenantLookupOutcome::NotFound);
            counter.record(&TenantLookupOutcome::Unavailable);
        }
        assert!(!counter.is_mass_loss(), "49 clients are too few");
        counter.record(&TenantLookupOutcome::NotFound);
        assert!(counter.is_mass_loss());
    }

    #[test]
    fn mass_loss_needs_more_than_20_percent_not_found() {
        let mut counter = MassLossCounter::default();
        for _ in 0..80 {
            counter.record(&found());
        }
        for _ in 0..20 {
            counter.record(&TenantLookupOutcome::NotFound);
        }
        assert!(!counter.is_mass_loss(), "exactly 20 % is allowed");
        counter.record(&TenantLookupOutcome::NotFound);
        assert!(counter.is_mass_loss());
    }
}
