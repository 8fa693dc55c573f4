//! If many clients that had a tenant turn out to have none within a minute, something is wrong with
//! the gateway: it is not believed, and who lost theirs to it just before gets it back.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::domain::{ClientId, Tenant};
use crate::telemetry::metrics;
use crate::tenant::{MassLossCounter, TenantLookupOutcome};

const WINDOW: Duration = Duration::from_mins(1);

/// What happened to tenants in the last minute.
#[derive(Default)]
pub struct MassLossDetector {
    /// Believe the gateway whatever it says.
    believe: bool,
    latest: Mutex<Latest>,
}

#[derive(Default)]
struct Latest {
    /// Each client once, by its hash, with its latest lookup: one that is looked up again and again,
    /// as in a batch that is held, counts as one.
    seen: HashMap<u64, Seen>,
    order: VecDeque<(Instant, u64)>,
    lost: u64,
    /// Whom a tenant was taken from, and what.
    taken: VecDeque<(Instant, ClientId, Tenant)>,
    /// When the answers were last not believed.
    tripped: Option<Instant>,
    /// When the log last said so.
    complained: Option<Instant>,
}

struct Seen {
    at: Instant,
    is_lost: bool,
}

/// What becomes of a batch.
#[derive(Default)]
pub(super) struct MassLossVerdict {
    /// To be given back now: taken by batches before.
    pub back: Vec<(ClientId, Tenant)>,
    /// Taken by this batch: to be given back if the answers turn out to be wrong before it is written.
    pub taken: Vec<(ClientId, Tenant)>,
    at: Option<Instant>,
}

impl MassLossDetector {
    /// Nothing happened yet. `believe` has the gateway believed whatever it says.
    #[must_use]
    pub fn new(believe: bool) -> Self {
        Self {
            believe,
            latest: Mutex::default(),
        }
    }

    /// Looks at a batch's clients that had a tenant. Where the answers are not to be believed, they
    /// are turned into none, and whoever is to get its tenant back is returned.
    pub(super) fn judge<'a>(
        &self,
        had: impl Iterator<Item = (&'a ClientId, Tenant, &'a mut TenantLookupOutcome)>,
    ) -> MassLossVerdict {
        let mut latest = self.latest.lock();
        let now = Instant::now();
        latest.forget(now);
        let batch: Vec<_> = had.collect();
        for (client, _, lookup) in &batch {
            latest.note(client, lookup, now);
        }
        let minute = MassLossCounter::of(latest.seen.len() as u64, latest.lost);
        if self.believe || !minute.is_tripped() {
            let lost = batch.into_iter();
            let lost = lost.filter(|(_, _, lookup)| **lookup == TenantLookupOutcome::NotFound);
            let taken: Vec<_> = lost
                .map(|(client, tenant, _)| (client.clone(), tenant))
                .collect();
            let noted = taken.iter().cloned();
            latest
                .taken
                .extend(noted.map(|(client, tenant)| (now, client, tenant)));
            return MassLossVerdict {
                back: Vec::new(),
                taken,
                at: Some(now),
            };
        }
        latest.tripped = Some(now);
        metrics::mass_loss();
        // Every batch of a bad hour would say the same.
        if latest.complained.is_none_or(|at| now - at >= WINDOW) {
            latest.complained = Some(now);
            minute.log_suppressed();
        }
        for (_, _, lookup) in batch {
            if *lookup == TenantLookupOutcome::NotFound {
                *lookup = TenantLookupOutcome::Unavailable;
            }
        }
        let taken = std::mem::take(&mut latest.taken).into_iter();
        MassLossVerdict {
            back: taken.map(|(_, client, tenant)| (client, tenant)).collect(),
            ..MassLossVerdict::default()
        }
    }

    /// Whether the answers turned out to be wrong since a batch was judged: another one may have given
    /// back what this one had not taken yet.
    pub(super) fn is_overruled_since(&self, judgement: &MassLossVerdict) -> bool {
        let tripped = self.latest.lock().tripped;
        !judgement.taken.is_empty() && tripped.is_some() && tripped >= judgement.at
    }
}

impl Latest {
    fn note(&mut self, client: &ClientId, lookup: &TenantLookupOutcome, now: Instant) {
        if *lookup == TenantLookupOutcome::Unavailable {
            return;
        }
        let mut hasher = DefaultHasher::new();
        client.hash(&mut hasher);
        let hash = hasher.finish();
        let is_lost = *lookup == TenantLookupOutcome::NotFound;
        let before = self.seen.insert(hash, Seen { at: now, is_lost });
        self.lost -= u64::from(before.is_some_and(|before| before.is_lost));
        self.lost += u64::from(is_lost);
        self.order.push_back((now, hash));
    }

    fn forget(&mut self, now: Instant) {
        let is_old = |at: Instant| now.duration_since(at) > WINDOW;
        while let Some((at, hash)) = self.order.front().copied()
            && is_old(at)
        {
            self.order.pop_front();
            // Looked up again since, it stays.
            if self.seen.get(&hash).is_some_and(|seen| seen.at == at)
                && let Some(seen) = self.seen.remove(&hash)
            {
                self.lost -= u64::from(seen.is_lost);
            }
        }
        while self.taken.front().is_some_and(|(at, _, _)| is_old(*at)) {
            self.taken.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Identity, OrgId};

    fn tenant() -> Tenant {
        Tenant {
            org_id: OrgId::new("1").unwrap(),
            account: String::new(),
        }
    }

    fn judge(
        losses: &MassLossDetector,
        names: std::ops::Range<u32>,
        says: &TenantLookupOutcome,
    ) -> (Vec<TenantLookupOutcome>, usize) {
        let mut clients: Vec<_> = names
            .map(|n| (ClientId::new(&n.to_string()).unwrap(), says.clone()))
            .collect();
        let had = clients
            .iter_mut()
            .map(|(client, lookup)| (&*client, tenant(), lookup));
        let back = losses.judge(had).back.len();
        (
            clients.into_iter().map(|(_, lookup)| lookup).collect(),
            back,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_may_lose_their_tenant_and_a_mass_loss_is_undone() {
        let losses = MassLossDetector::default();
        let (lookups, back) = judge(&losses, 0..49, &TenantLookupOutcome::NotFound);
        assert!(
            lookups
                .iter()
                .all(|lookup| *lookup == TenantLookupOutcome::NotFound)
        );
        assert_eq!(back, 0);
        let (lookups, back) = judge(&losses, 49..60, &TenantLookupOutcome::NotFound);
        assert!(
            lookups
                .iter()
                .all(|lookup| *lookup == TenantLookupOutcome::Unavailable)
        );
        assert_eq!(back, 49, "those from before get theirs back");
        let (lookups, back) = judge(&losses, 60..61, &TenantLookupOutcome::NotFound);
        assert_eq!((lookups, back), (vec![TenantLookupOutcome::Unavailable], 0));
        // A minute later it starts over.
        tokio::time::advance(WINDOW + Duration::from_secs(1)).await;
        let (lookups, _) = judge(&losses, 0..1, &TenantLookupOutcome::NotFound);
        assert_eq!(lookups, [TenantLookupOutcome::NotFound]);
    }

    #[tokio::test(start_paused = true)]
    async fn among_many_that_are_found_a_few_lose_theirs() {
        let losses = MassLossDetector::default();
        judge(
            &losses,
            0..100,
            &TenantLookupOutcome::of(Identity::made_for(&tenant())),
        );
        let (lookups, _) = judge(&losses, 100..110, &TenantLookupOutcome::NotFound);
        assert!(
            lookups
                .iter()
                .all(|lookup| *lookup == TenantLookupOutcome::NotFound)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_client_counts_once_however_often_it_is_looked_up() {
        let losses = MassLossDetector::default();
        for _ in 0..200 {
            let (lookups, back) = judge(&losses, 0..3, &TenantLookupOutcome::NotFound);
            assert!(
                lookups
                    .iter()
                    .all(|lookup| *lookup == TenantLookupOutcome::NotFound)
            );
            assert_eq!(back, 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_operator_may_want_it_believed() {
        let losses = MassLossDetector::new(true);
        let (lookups, back) = judge(&losses, 0..100, &TenantLookupOutcome::NotFound);
        assert!(
            lookups
                .iter()
                .all(|lookup| *lookup == TenantLookupOutcome::NotFound)
        );
        assert_eq!(back, 0);
    }
}
