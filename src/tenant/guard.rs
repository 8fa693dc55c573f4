//! If many that had a tenant turn out to have none at once, something is wrong with the gateway.

use super::TenantLookupOutcome;

/// Below this many nothing is concluded.
const AT_LEAST: u64 = 50;
/// More than one in so many is too many.
const ONE_IN: u64 = 5;

/// Counts clients that had a tenant, and how many of them would lose it.
#[derive(Debug, Clone, Copy, Default)]
pub struct MassLossCounter {
    asked: u64,
    lost: u64,
}

impl MassLossCounter {
    /// A client that had a tenant was looked up.
    pub fn note(&mut self, lookup: &TenantLookupOutcome) {
        match lookup {
            TenantLookupOutcome::Found(_) => self.asked += 1,
            TenantLookupOutcome::NotFound => {
                self.asked += 1;
                self.lost += 1;
            }
            TenantLookupOutcome::Unavailable => {}
        }
    }

    /// With these counts.
    #[must_use]
    pub fn of(asked: u64, lost: u64) -> Self {
        Self { asked, lost }
    }

    /// Whether too many would lose theirs.
    #[must_use]
    pub fn is_tripped(&self) -> bool {
        self.asked >= AT_LEAST && self.lost * ONE_IN > self.asked
    }

    /// Says it in the log.
    pub fn log_suppressed(&self) {
        tracing::error!(
            lost = self.lost,
            asked = self.asked,
            "the lookup service says of too many clients that they belong to nobody: not believed, and they keep their organisation; if it is right, set tenant.allow_mass_loss, or run the updater with --force"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Identity, OrgId, Tenant};

    fn found() -> TenantLookupOutcome {
        TenantLookupOutcome::of(Identity::made_for(&Tenant {
            org_id: OrgId::new("1").unwrap(),
            account: String::new(),
        }))
    }

    #[test]
    fn it_trips_when_more_than_a_fifth_of_at_least_fifty_would_lose_their_tenant() {
        let mut guard = MassLossCounter::default();
        for _ in 0..49 {
            guard.note(&TenantLookupOutcome::NotFound);
            guard.note(&TenantLookupOutcome::Unavailable);
        }
        assert!(!guard.is_tripped(), "49 are too few to tell");
        guard.note(&TenantLookupOutcome::NotFound);
        assert!(guard.is_tripped());
        let mut guard = MassLossCounter::default();
        for _ in 0..80 {
            guard.note(&found());
        }
        for _ in 0..20 {
            guard.note(&TenantLookupOutcome::NotFound);
        }
        assert!(!guard.is_tripped(), "a fifth is not more than a fifth");
        guard.note(&TenantLookupOutcome::NotFound);
        assert!(guard.is_tripped());
    }
}
