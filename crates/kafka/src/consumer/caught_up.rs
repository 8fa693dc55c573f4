//! The time up to which a partition is processed.
//!
//! Each check notes the end of the partition. When everything before this end is processed, everything that
//! the partition contained at the time of the check is processed. A partition without new messages has
//! always reached its end, so its time advances with each check.

use std::collections::VecDeque;

use tokio::time::Instant;

/// Maximum number of ends that are not reached yet. While a consumer is further behind, the latest end
/// replaces the last one, so the times become less accurate but never too late.
const MAX_PENDING_ENDS: usize = 64;

/// The time up to which a partition is processed.
#[derive(Debug, Default)]
pub(super) struct CaughtUp {
    /// Times of checks, and the end of the partition that was read after this time.
    pending_ends: VecDeque<(Instant, i64)>,
    processed_until: Option<Instant>,
}

impl CaughtUp {
    /// Notes the end offset of the partition, which was read after `checked_at`.
    pub fn add_end(&mut self, checked_at: Instant, end_offset: i64) {
        if self.pending_ends.len() >= MAX_PENDING_ENDS {
            self.pending_ends.pop_back();
        }
        self.pending_ends.push_back((checked_at, end_offset));
    }

    /// Notes that everything before `processed_offset` is processed. Returns the time up to which the
    /// partition is processed. `None` if no end was reached yet.
    pub fn on_processed(&mut self, processed_offset: i64) -> Option<Instant> {
        while let Some((checked_at, end_offset)) = self.pending_ends.front()
            && *end_offset <= processed_offset
        {
            self.processed_until = Some(*checked_at);
            self.pending_ends.pop_front();
        }
        self.processed_until
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_of_a_check_is_reached_when_its_end_is_processed() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut caught_up = CaughtUp::default();
        caught_up.add_end(after(1), 5);
        assert_eq!(caught_up.on_processed(4), None);
        caught_up.add_end(after(2), 8);
        assert_eq!(caught_up.on_processed(5), Some(after(1)));
        // The consumer is always behind the newest end, but the time advances.
        caught_up.add_end(after(3), 12);
        assert_eq!(caught_up.on_processed(9), Some(after(2)));
        // Nothing more arrives.
        caught_up.add_end(after(4), 12);
        assert_eq!(caught_up.on_processed(12), Some(after(4)));
        caught_up.add_end(after(5), 12);
        assert_eq!(caught_up.on_processed(12), Some(after(5)));
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_consumer_keeps_a_bounded_number_of_ends() {
        let start = Instant::now();
        let mut caught_up = CaughtUp::default();
        for second in 0..1000 {
            let offset = i64::try_from(second).unwrap() + 1;
            caught_up.add_end(start + Duration::from_secs(second), offset);
            assert_eq!(caught_up.on_processed(0), None);
        }
        assert_eq!(caught_up.pending_ends.len(), MAX_PENDING_ENDS);
        assert_eq!(caught_up.on_processed(1), Some(start));
        let last = start + Duration::from_secs(999);
        assert_eq!(caught_up.on_processed(1000), Some(last));
    }
}
