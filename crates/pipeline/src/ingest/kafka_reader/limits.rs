//! Limits of a reader: the size of a chunk, and the messages in flight.

use crate::record::QueueTopic;
use service::ByteBudget;

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
            },
            QueueTopic::Slow => Self {
                max_chunk_messages: 200,
                max_chunk_bytes: 256 * 1024,
                max_in_flight_messages: 400,
                min_in_flight_bytes: 512 * 1024,
                uses_message_budget: false,
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
}
