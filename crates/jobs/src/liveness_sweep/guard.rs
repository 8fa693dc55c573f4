//! The guard of the sweep: if most clients do not answer, the way to the clients is broken, not the clients.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// The guard considers the pings of this time.
pub(super) const GUARD_WINDOW: Duration = Duration::from_mins(10);

/// The guard needs this number of pinged clients.
const MIN_PINGED_CLIENTS: u64 = 20;

/// Number of clients that were pinged together, and how many answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PingCount {
    pub pinged: u64,
    pub answered: u64,
}

impl PingCount {
    /// Returns whether the numbers show that pings and answers arrive, or are too small to show the opposite.
    fn is_plausible(self) -> bool {
        self.pinged < MIN_PINGED_CLIENTS || self.answered.saturating_mul(2) >= self.pinged
    }
}

/// The pings of the last 10 minutes.
#[derive(Debug, Default)]
pub(super) struct Guard {
    counts: VecDeque<(Instant, PingCount)>,
}

impl Guard {
    /// Adds clients that were pinged, and whose time to answer is over. Returns whether connections may be
    /// ended: at least half of these clients answered, and at least half of all clients that were pinged in
    /// the last 10 minutes.
    pub fn add(&mut self, count: PingCount) -> bool {
        let total = self.total_with(count);
        self.counts.push_back((Instant::now(), count));
        count.is_plausible() && total.is_plausible()
    }

    /// Returns how many clients that are certainly connected must be pinged, too, if `count` is what the
    /// silent clients answered. Otherwise clients that died together would look like a broken way to the
    /// clients.
    pub fn number_of_controls(&mut self, count: PingCount) -> usize {
        let total = self.total_with(count);
        number_of_controls(count).max(number_of_controls(total))
    }

    fn total_with(&mut self, count: PingCount) -> PingCount {
        let now = Instant::now();
        self.counts
            .retain(|(added_at, _)| now.duration_since(*added_at) < GUARD_WINDOW);
        self.counts
            .iter()
            .fold(count, |total, (_, count)| PingCount {
                pinged: total.pinged + count.pinged,
                answered: total.answered + count.answered,
            })
    }
}

/// Returns how many more clients must be pinged, so that at least half answer. A few of them may not answer.
fn number_of_controls(count: PingCount) -> usize {
    if count.is_plausible() {
        return 0;
    }
    let missing = count
        .pinged
        .saturating_sub(count.answered.saturating_mul(2));
    usize::try_from(missing + missing / 4 + 5).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(pinged: u64, answered: u64) -> PingCount {
        PingCount { pinged, answered }
    }

    #[tokio::test(start_paused = true)]
    async fn at_least_half_of_twenty_clients_must_answer() {
        for (pinged, answered, expected) in [
            (19, 0, true),
            (20, 9, false),
            (20, 10, true),
            (1000, 499, false),
        ] {
            let allowed = Guard::default().add(count(pinged, answered));
            assert_eq!(allowed, expected, "{pinged} {answered}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pings_of_the_last_ten_minutes_are_added_up() {
        let mut guard = Guard::default();
        assert!(guard.add(count(15, 0)));
        assert!(!guard.add(count(15, 8)));
        // Earlier answers do not count if no client answers now.
        assert!(guard.add(count(100, 100)));
        assert!(!guard.add(count(20, 0)));
        tokio::time::advance(GUARD_WINDOW).await;
        assert!(guard.add(count(15, 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn controls_make_the_answers_of_living_clients_the_majority() {
        assert_eq!(number_of_controls(count(100, 50)), 0);
        assert_eq!(number_of_controls(count(19, 0)), 0);
        let mut guard = Guard::default();
        guard.add(count(15, 0));
        assert_eq!(guard.number_of_controls(count(5, 0)), 30);
        for (pinged, answered) in [(20, 0), (100, 49), (5000, 1000)] {
            let controls = number_of_controls(count(pinged, answered)) as u64;
            // One control of twenty does not answer.
            let total = count(pinged + controls, answered + controls - controls / 20);
            assert!(total.is_plausible(), "{total:?}");
        }
    }
}
