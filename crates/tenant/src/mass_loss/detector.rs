//! Detects a mass tenant loss while batches of presence messages are recorded.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::MassLossCounter;
use crate::{TenantLookupOutcome, metrics};
use domain::{ClientId, Tenant};

const LOOKUP_WINDOW_DURATION: Duration = Duration::from_mins(1);

/// Detects a mass tenant loss in the lookups of all batches of the last minute.
#[derive(Default)]
pub struct MassLossDetector {
    /// If true, the detector suppresses no "not found" results.
    allow_mass_loss: bool,
    window: Mutex<LookupWindow>,
}

/// The lookups of the last minute.
#[derive(Default)]
struct LookupWindow {
    /// The latest lookup of each client. The key is the hash of the client id. A client counts
    /// once, even if a batch is retried and looks up the client several times.
    latest_lookups: HashMap<u64, LatestLookup>,
    /// Time and client hash of every lookup, oldest first. Used to remove expired entries of
    /// `latest_lookups`.
    lookup_times: VecDeque<(Instant, u64)>,
    /// Number of entries of `latest_lookups` whose field `is_not_found` is true.
    not_found_count: u64,
    /// Clients whose tenant was cleared. Each entry contains the time, the client id and the former
    /// tenant.
    cleared_tenants: VecDeque<(Instant, ClientId, Tenant)>,
    /// Time of the latest batch whose "not found" results were suppressed.
    last_suppressed_at: Option<Instant>,
    last_logged_at: Option<Instant>,
}

struct LatestLookup {
    time: Instant,
    is_not_found: bool,
}

/// What the caller must do with the tenants of a batch.
#[derive(Default)]
pub struct MassLossVerdict {
    /// Tenants that earlier batches cleared by mistake. The caller must restore these tenants now.
    pub tenants_to_restore: Vec<(ClientId, Tenant)>,
    /// Tenants that this batch clears. The caller must restore these tenants if
    /// [`MassLossDetector::must_restore_cleared_tenants`] returns true after the batch is written.
    pub cleared_tenants: Vec<(ClientId, Tenant)>,
    evaluated_at: Option<Instant>,
}

impl MassLossDetector {
    /// Creates a detector. If `allow_mass_loss` is true, the detector suppresses nothing.
    #[must_use]
    pub fn new(allow_mass_loss: bool) -> Self {
        Self {
            allow_mass_loss,
            window: Mutex::default(),
        }
    }

    /// Adds the lookups of a batch to the window. `lookups` must contain only clients that had a
    /// tenant. If the window contains a mass loss, the function replaces the outcome `NotFound` by
    /// `Unavailable` and returns the tenants to restore.
    pub fn evaluate<'a>(
        &self,
        lookups: impl Iterator<Item = (&'a ClientId, Tenant, &'a mut TenantLookupOutcome)>,
    ) -> MassLossVerdict {
        let mut window = self.window.lock();
        let now = Instant::now();
        window.remove_expired_entries(now);
        let lookups: Vec<_> = lookups.collect();
        for (client, _, outcome) in &lookups {
            window.add_lookup(client, outcome, now);
        }
        let counter = MassLossCounter::with_counts(
            window.latest_lookups.len() as u64,
            window.not_found_count,
        );
        if self.allow_mass_loss || !counter.is_mass_loss() {
            let cleared_tenants: Vec<_> = lookups
                .into_iter()
                .filter(|(_, _, outcome)| **outcome == TenantLookupOutcome::NotFound)
                .map(|(client, tenant, _)| (client.clone(), tenant))
                .collect();
            let entries = cleared_tenants.iter().cloned();
            window
                .cleared_tenants
                .extend(entries.map(|(client, tenant)| (now, client, tenant)));
            return MassLossVerdict {
                tenants_to_restore: Vec::new(),
                cleared_tenants,
                evaluated_at: Some(now),
            };
        }
        window.last_suppressed_at = Some(now);
        metrics::count_suppressed_mass_loss();
        // During a gateway fault, every batch reaches this point, so the detector logs only once
        // per window.
        let is_log_due = |last: Instant| now - last >= LOOKUP_WINDOW_DURATION;
        if window.last_logged_at.is_none_or(is_log_due) {
            window.last_logged_at = Some(now);
            counter.log_suppressed_mass_loss();
        }
        for (_, _, outcome) in lookups {
            if *outcome == TenantLookupOutcome::NotFound {
                *outcome = TenantLookupOutcome::Unavailable;
            }
        }
        let cleared_tenants = std::mem::take(&mut window.cleared_tenants).into_iter();
        MassLossVerdict {
            tenants_to_restore: cleared_tenants
                .map(|(_, client, tenant)| (client, tenant))
                .collect(),
            ..MassLossVerdict::default()
        }
    }

    /// Returns whether the caller must restore the `cleared_tenants` of this verdict. This is the
    /// case if another batch detected a mass loss after this verdict. The other batch could not
    /// restore these tenants, because this batch was not written yet.
    pub fn must_restore_cleared_tenants(&self, verdict: &MassLossVerdict) -> bool {
        let last_suppressed_at = self.window.lock().last_suppressed_at;
        !verdict.cleared_tenants.is_empty()
            && last_suppressed_at.is_some()
            && last_suppressed_at >= verdict.evaluated_at
    }
}

impl LookupWindow {
    fn add_lookup(&mut self, client: &ClientId, outcome: &TenantLookupOutcome, now: Instant) {
        if *outcome == TenantLookupOutcome::Unavailable {
            return;
        }
        let mut hasher = DefaultHasher::new();
        client.hash(&mut hasher);
        let client_hash = hasher.finish();
        let is_not_found = *outcome == TenantLookupOutcome::NotFound;
        let lookup = LatestLookup {
            time: now,
            is_not_found,
        };
        let previous = self.latest_lookups.insert(client_hash, lookup);
        self.not_found_count -= u64::from(previous.is_some_and(|previous| previous.is_not_found));
        self.not_found_count += u64::from(is_not_found);
        self.lookup_times.push_back((now, client_hash));
    }

    fn remove_expired_entries(&mut self, now: Instant) {
        let is_expired = |time: Instant| now.duration_since(time) > LOOKUP_WINDOW_DURATION;
        while let Some((time, client_hash)) = self.lookup_times.front().copied()
            && is_expired(time)
        {
            self.lookup_times.pop_front();
            // If the client was looked up again later, the map contains the later lookup, which is
            // not removed.
            let is_latest = |lookup: &LatestLookup| lookup.time == time;
            if self.latest_lookups.get(&client_hash).is_some_and(is_latest)
                && let Some(lookup) = self.latest_lookups.remove(&client_hash)
            {
                self.not_found_count -= u64::from(lookup.is_not_found);
            }
        }
        while self
            .cleared_tenants
            .front()
            .is_some_and(|(time, _, _)| is_expired(*time))
        {
            self.cleared_tenants.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::{Identity, OrgId};

    fn tenant() -> Tenant {
        Tenant {
            org_id: OrgId::new("1").unwrap(),
            account: String::new(),
        }
    }

    /// Evaluates one batch in which every client has the same outcome. Returns the outcomes after
    /// the evaluation and the number of tenants to restore.
    fn evaluate_batch(
        detector: &MassLossDetector,
        client_numbers: std::ops::Range<u32>,
        outcome: &TenantLookupOutcome,
    ) -> (Vec<TenantLookupOutcome>, usize) {
        let mut clients: Vec<_> = client_numbers
            .map(|n| (ClientId::new(&n.to_string()).unwrap(), outcome.clone()))
            .collect();
        let lookups = clients
            .iter_mut()
            .map(|(client, outcome)| (&*client, tenant(), outcome));
        let restored_count = detector.evaluate(lookups).tenants_to_restore.len();
        let outcomes = clients.into_iter().map(|(_, outcome)| outcome).collect();
        (outcomes, restored_count)
    }

    fn assert_all_outcomes_equal(outcomes: &[TenantLookupOutcome], expected: &TenantLookupOutcome) {
        assert!(
            outcomes.iter().all(|outcome| outcome == expected),
            "{outcomes:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn mass_loss_is_suppressed_and_earlier_cleared_tenants_are_restored() {
        let detector = MassLossDetector::default();
        let (outcomes, restored_count) =
            evaluate_batch(&detector, 0..49, &TenantLookupOutcome::NotFound);
        assert_all_outcomes_equal(&outcomes, &TenantLookupOutcome::NotFound);
        assert_eq!(restored_count, 0);
        let (outcomes, restored_count) =
            evaluate_batch(&detector, 49..60, &TenantLookupOutcome::NotFound);
        assert_all_outcomes_equal(&outcomes, &TenantLookupOutcome::Unavailable);
        assert_eq!(restored_count, 49, "tenants cleared by the first batch");
        let (outcomes, restored_count) =
            evaluate_batch(&detector, 60..61, &TenantLookupOutcome::NotFound);
        assert_all_outcomes_equal(&outcomes, &TenantLookupOutcome::Unavailable);
        assert_eq!(restored_count, 0);

        tokio::time::advance(LOOKUP_WINDOW_DURATION + Duration::from_secs(1)).await;
        let (outcomes, _) = evaluate_batch(&detector, 0..1, &TenantLookupOutcome::NotFound);
        assert_all_outcomes_equal(&outcomes, &TenantLookupOutcome::NotFound);
    }

    #[tokio::test(start_paused = true)]
    async fn not_found_is_applied_if_most_clients_are_found() {
        let detector = MassLossDetector::default();
        let found = TenantLookupOutcome::from_identity(Identity::for_tenant(&tenant()));
        evaluate_batch(&detector, 0..100, &found);
        let (outcomes, _) = evaluate_batch(&detector, 100..110, &TenantLookupOutcome::NotFound);
        assert_all_outcomes_equal(&outcomes, &TenantLookupOutcome::NotFound);
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_lookups_of_a_client_count_once() {
        let detector = MassLossDetector::default();
        for _ in 0..200 {
            let (outcomes, restored_count) =
                evaluate_batch(&detector, 0..3, &TenantLookupOutcome::NotFound);
            assert_all_outcomes_equal(&outcomes, &TenantLookupOutcome::NotFound);
            assert_eq!(restored_count, 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn allow_mass_loss_applies_all_not_found_results() {
        let detector = MassLossDetector::new(true);
        let (outcomes, restored_count) =
            evaluate_batch(&detector, 0..100, &TenantLookupOutcome::NotFound);
        assert_all_outcomes_equal(&outcomes, &TenantLookupOutcome::NotFound);
        assert_eq!(restored_count, 0);
    }
}
