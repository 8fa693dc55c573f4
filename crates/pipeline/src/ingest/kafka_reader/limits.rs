//! Limits of a reader: the size of a chunk, and the messages in flight.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::record::QueueTopic;
use service::ByteBudget;

/// Maximum pause after a chunk. A chunk that had to wait for the database is not followed by a long pause.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Limits of the reader of one topic.
pub(super) struct ReaderLimits {
    /// Maximum number of messages that the reader submits to the recorder in one chunk.
    pub max_chunk_messages: usize,
    /// Maximum size of the messages that the reader submits to the recorder in one chunk. Also the
    /// size of the payloads after which the reader lets other tasks run.
    pub max_chunk_bytes: usize,
    /// The reader stops polling at this number of messages in flight. It polls again when at most half
    /// of this number is in flight.
    max_in_flight_messages: usize,
    /// The reader always continues polling while fewer bytes than this are in flight. Otherwise it
    /// would stop if other components of the process used the whole message budget.
    min_in_flight_bytes: usize,
    /// Whether more bytes than `min_in_flight_bytes` may be in flight while the message budget has
    /// space.
    uses_message_budget: bool,
    /// Whether a chunk counts as in flight for twice the time that the recorder needs for it. The reader
    /// then uses at most half of the capacity of its writer.
    pub pauses_after_chunks: bool,
}

impl ReaderLimits {
    pub fn new(queue_topic: QueueTopic) -> Self {
        match queue_topic {
            QueueTopic::Ingress | QueueTopic::Answers => Self {
                max_chunk_messages: 500,
                max_chunk_bytes: 1024 * 1024,
                max_in_flight_messages: 5_000,
                min_in_flight_bytes: 8 * 1024 * 1024,
                uses_message_budget: true,
                pauses_after_chunks: false,
            },
            QueueTopic::Slow => Self {
                max_chunk_messages: 200,
                max_chunk_bytes: 256 * 1024,
                max_in_flight_messages: 400,
                min_in_flight_bytes: 512 * 1024,
                uses_message_budget: false,
                pauses_after_chunks: true,
            },
        }
    }

    /// Returns whether the reader must stop polling.
    pub fn is_full(&self, messages: usize, bytes: usize, budget: &ByteBudget) -> bool {
        let budget_is_used = !self.uses_message_budget || budget.used() >= budget.limit() / 8 * 3;
        messages >= self.max_in_flight_messages
            || (bytes >= self.min_in_flight_bytes && budget_is_used)
    }

    /// Returns whether the reader may poll again after it has stopped.
    pub fn has_capacity(&self, messages: usize, bytes: usize, budget: &ByteBudget) -> bool {
        let budget_has_space = self.uses_message_budget && budget.used() <= budget.limit() / 4;
        messages <= self.max_in_flight_messages / 2
            && (bytes <= self.min_in_flight_bytes / 2 || budget_has_space)
    }
}

/// Waits for `work`. If `pauses` is true, then waits for the same time again, but not longer than
/// [`MAX_PAUSE`].
pub(super) async fn run_with_pause<T>(pauses: bool, work: impl Future<Output = T>) -> T {
    let started_at = Instant::now();
    let result = work.await;
    if pauses {
        sleep(started_at.elapsed().min(MAX_PAUSE)).await;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    #[test]
    fn slow_topic_has_a_small_share_even_if_the_message_budget_has_space() {
        let budget = ByteBudget::new(128 * MIB);
        let normal = ReaderLimits::new(QueueTopic::Ingress);
        let slow = ReaderLimits::new(QueueTopic::Slow);
        assert!(!normal.is_full(1000, 16 * MIB, &budget));
        assert!(slow.is_full(0, MIB, &budget));
        assert!(slow.is_full(1000, 0, &budget));
        assert!(!slow.has_capacity(0, MIB / 2, &budget));
        assert!(slow.has_capacity(0, MIB / 4, &budget));
    }

    #[test]
    fn slow_topic_is_read_while_other_components_use_the_message_budget() {
        let budget = ByteBudget::new(128 * MIB);
        let _others = budget.reserve(128 * MIB);
        let slow = ReaderLimits::new(QueueTopic::Slow);
        assert!(!slow.is_full(10, MIB / 4, &budget));
        assert!(slow.has_capacity(10, MIB / 4, &budget));
    }

    #[tokio::test(start_paused = true)]
    async fn pause_is_as_long_as_the_work_but_limited() {
        for (work, pauses, expected) in [(100, true, 200), (100, false, 100), (5000, true, 5500)] {
            let started_at = Instant::now();
            run_with_pause(pauses, sleep(Duration::from_millis(work))).await;
            assert_eq!(started_at.elapsed().as_millis(), expected);
        }
    }
}
