//! If many clients that had a tenant turn out to have none within a minute, something is wrong with
//! the gateway: it is not believed, and who lost theirs to it just before gets it back.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::domain::{ClientId, Tenant};
use crate::telemetry::metrics;
use crate::tenant::{Guard, Lookup};

const WINDOW: Duration = Duration::from_mins(1);

/// What happened to tenants in the last minute.
#[derive(Default)]
pub struct Losses {
    /// Believe the gateway whatever it says.
    believe: bool,
    latest: Mutex<Latest>,
}

#[derive(Default)]
struct Latest {
    /// A count a batch: the number of batches in a minute is bounded by the disk.
    counts: VecDeque<(Instant, Guard)>,
    /// Whom a tenant was taken from, and what.
    taken: VecDeque<(Instant, ClientId, Tenant)>,
    /// When the answers were last not believed.
    tripped: Option<Instant>,
}

/// What becomes of a batch.
#[derive(Default)]
pub(super) struct Judgement {
    /// To be given back now: taken by batches before.
    pub back: Vec<(ClientId, Tenant)>,
    /// Taken by this batch: to be given back if the answers turn out to be wrong before it is written.
    pub taken: Vec<(ClientId, Tenant)>,
    at: Option<Instant>,
}

impl Losses {
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
        had: impl Iterator<Item = (&'a ClientId, Tenant, &'a mut Lookup)>,
    ) -> Judgement {
        let mut latest = self.latest.lock();
        let now = Instant::now();
        latest.forget(now);
        let batch: Vec<_> = had.collect();
        let mut counted = Guard::default();
        for (_, _, lookup) in &batch {
            counted.note(lookup);
        }
        if counted.asked() > 0 {
            latest.counts.push_back((now, counted));
        }
        let counts = latest.counts.iter().map(|(_, counted)| *counted);
        let minute = counts.fold(Guard::default(), Guard::and);
        if self.believe || !minute.is_tripped() {
            let lost = batch.into_iter();
            let lost = lost.filter(|(_, _, lookup)| **lookup == Lookup::NotFound);
            let taken: Vec<_> = lost
                .map(|(client, tenant, _)| (client.clone(), tenant))
                .collect();
            let noted = taken.iter().cloned();
            latest
                .taken
                .extend(noted.map(|(client, tenant)| (now, client, tenant)));
            return Judgement {
                back: Vec::new(),
                taken,
                at: Some(now),
            };
        }
        latest.tripped = Some(now);
        metrics::mass_loss(minute.lost(), minute.asked());
        for (_, _, lookup) in batch {
            if *lookup == Lookup::NotFound {
                *lookup = Lookup::Unavailable;
            }
        }
        let taken = std::mem::take(&mut latest.taken).into_iter();
        Judgement {
            back: taken.map(|(_, client, tenant)| (client, tenant)).collect(),
            ..Judgement::default()
        }
    }

    /// Whether the answers turned out to be wrong since a batch was judged: another one may have given
    /// back what this one had not taken yet.
    pub(super) fn is_overruled(&self, judgement: &Judgement) -> bool {
        let tripped = self.latest.lock().tripped;
        !judgement.taken.is_empty() && tripped.is_some() && tripped >= judgement.at
    }
}

impl Latest {
    fn forget(&mut self, now: Instant) {
        let is_old = |at: Instant| now.duration_since(at) > WINDOW;
        while self.counts.front().is_some_and(|(at, _)| is_old(*at)) {
            self.counts.pop_front();
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

    fn judge(losses: &Losses, names: std::ops::Range<u32>, says: &Lookup) -> (Vec<Lookup>, usize) {
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
        let losses = Losses::default();
        let (lookups, back) = judge(&losses, 0..49, &Lookup::NotFound);
        assert!(lookups.iter().all(|lookup| *lookup == Lookup::NotFound));
        assert_eq!(back, 0);
        let (lookups, back) = judge(&losses, 49..60, &Lookup::NotFound);
        assert!(lookups.iter().all(|lookup| *lookup == Lookup::Unavailable));
        assert_eq!(back, 49, "those from before get theirs back");
        let (lookups, back) = judge(&losses, 60..61, &Lookup::NotFound);
        assert_eq!((lookups, back), (vec![Lookup::Unavailable], 0));
        // A minute later it starts over.
        tokio::time::advance(WINDOW + Duration::from_secs(1)).await;
        let (lookups, _) = judge(&losses, 0..1, &Lookup::NotFound);
        assert_eq!(lookups, [Lookup::NotFound]);
    }

    #[tokio::test(start_paused = true)]
    async fn among_many_that_are_found_a_few_lose_theirs() {
        let losses = Losses::default();
        judge(&losses, 0..100, &Lookup::of(Identity::made_for(&tenant())));
        let (lookups, _) = judge(&losses, 100..110, &Lookup::NotFound);
        assert!(lookups.iter().all(|lookup| *lookup == Lookup::NotFound));
    }

    #[tokio::test(start_paused = true)]
    async fn an_operator_may_want_it_believed() {
        let losses = Losses::new(true);
        let (lookups, back) = judge(&losses, 0..100, &Lookup::NotFound);
        assert!(lookups.iter().all(|lookup| *lookup == Lookup::NotFound));
        assert_eq!(back, 0);
    }
}
