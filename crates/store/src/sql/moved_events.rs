//! Which part of `event_outbox` the sequencer need not search.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longer than any transaction that inserts events: each of its few statements has a deadline of
/// seconds, and the server ends a session that is idle in a transaction.
const LONGEST_TRANSACTION: Duration = Duration::from_mins(5);
/// Time between two searches of the whole table.
const FULL_SEARCH_INTERVAL: Duration = Duration::from_mins(1);
/// Minimum time between two remembered ids.
const RESOLUTION: Duration = Duration::from_secs(5);

/// The highest ids that this process has moved from `event_outbox` to `events`.
///
/// A deleted row stays in the index until no session of the cluster can see it: during a backup, or with a
/// replication slot, for hours. A search from the start of the index would read all these entries.
/// Searches therefore start after an id below which no row can appear.
///
/// Why no id is skipped that commits late: ids are drawn in ascending order. When id X is moved, all ids
/// below X are drawn. `LONGEST_TRANSACTION` later, the transactions that have drawn them are committed or
/// rolled back. If a search that starts then, with the previous lower limit, leaves no row behind, no
/// row with an id up to X is left, and none can appear. Only such a search moves the limit to X. So the
/// events of a client are also moved in their order. As a precaution, the whole table is searched
/// once a minute: if a transaction takes longer nevertheless, its events are late, but not lost.
#[derive(Debug, Default)]
pub struct MovedEvents(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Times and highest ids of moved events, oldest first.
    moved: VecDeque<(Instant, i64)>,
    /// No row has an id up to this id.
    limit: i64,
    /// Time of the latest search of the whole table.
    searched_all_at: Option<Instant>,
}

/// A search of `event_outbox`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutboxSearch {
    /// Only rows with a higher id are searched.
    pub after_id: i64,
    /// The limit after a search that leaves no row behind.
    next_limit: i64,
}

impl MovedEvents {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how to search the table. The search must start after this call.
    pub(super) fn next_search(&self, now: Instant) -> OutboxSearch {
        let mut state = self.state();
        let mut next_limit = state.limit;
        let is_settled = |at: Instant| now.duration_since(at) >= LONGEST_TRANSACTION;
        while let Some((_, id)) = state.moved.pop_front_if(|(at, _)| is_settled(*at)) {
            next_limit = next_limit.max(id);
        }
        if next_limit > state.limit {
            // Kept until a search has left no row behind.
            let settled_at = now.checked_sub(LONGEST_TRANSACTION).unwrap_or(now);
            state.moved.push_front((settled_at, next_limit));
        }
        let is_full_search_due = state
            .searched_all_at
            .is_none_or(|at| now.duration_since(at) >= FULL_SEARCH_INTERVAL);
        if is_full_search_due {
            state.searched_all_at = Some(now);
        }
        OutboxSearch {
            after_id: if is_full_search_due { 0 } else { state.limit },
            next_limit,
        }
    }

    /// Returns the id after which rows are counted.
    pub(super) fn limit(&self) -> i64 {
        self.state().limit
    }

    /// Stores the result of a search. `highest_id` is the highest id that the search has moved.
    /// `is_empty` is true if the search left no row behind.
    pub(super) fn on_searched(
        &self,
        search: OutboxSearch,
        highest_id: Option<i64>,
        is_empty: bool,
        now: Instant,
    ) {
        let mut state = self.state();
        if is_empty {
            state.limit = state.limit.max(search.next_limit);
        }
        let Some(highest_id) = highest_id else {
            return;
        };
        let latest = state.moved.back().copied();
        if latest.is_none_or(|(at, _)| now.duration_since(at) >= RESOLUTION) {
            state.moved.push_back((now, highest_id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches at a time. The search moves rows up to `highest_id`. Returns the id after which it has
    /// searched.
    fn search(moved: &MovedEvents, at: Instant, highest_id: Option<i64>, is_empty: bool) -> i64 {
        let search = moved.next_search(at);
        moved.on_searched(search, highest_id, is_empty, at);
        search.after_id
    }

    #[test]
    fn ids_are_skipped_after_all_earlier_transactions_have_ended() {
        let (moved, start) = (MovedEvents::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(search(&moved, at(0), Some(10), true), 0);
        assert_eq!(search(&moved, at(10), Some(20), true), 0);
        // The whole table is searched at 60, 120, 180, 240 and 300 seconds.
        for seconds in [60, 120, 180, 240] {
            assert_eq!(search(&moved, at(seconds), None, true), 0);
            assert_eq!(search(&moved, at(seconds + 1), None, true), 0);
        }
        assert_eq!(search(&moved, at(299), None, true), 0);
        // This search may find rows below 10 that were committed just before.
        assert_eq!(search(&moved, at(300), None, true), 0);
        assert_eq!(search(&moved, at(301), None, true), 10);
        assert_eq!(search(&moved, at(310), None, true), 10);
        assert_eq!(search(&moved, at(311), None, true), 20);
        assert_eq!(search(&moved, at(360), None, true), 0, "the whole table");
        assert_eq!(search(&moved, at(361), None, true), 20);
    }

    #[test]
    fn ids_are_not_skipped_before_a_search_has_left_no_row_behind() {
        let (moved, start) = (MovedEvents::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(search(&moved, at(0), Some(10), true), 0);
        assert_eq!(search(&moved, at(400), Some(15), false), 0);
        assert_eq!(search(&moved, at(401), Some(16), false), 0);
        assert_eq!(search(&moved, at(402), Some(30), true), 0);
        assert_eq!(search(&moved, at(403), None, true), 10);
        assert_eq!(moved.limit(), 10);
    }
}
