//! Limits for the messages of an external broker that are in memory at the same time. The memory of
//! the messages is reserved in the message budget of the process until the messages are durable. It
//! is the same memory before and after a message is passed to the Kafka producer. The recorder has its
//! own reservation, so the reservation of ingest ends when the recorder has the message.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use service::{ByteBudget, ByteReservation};

/// Maximum number of unacknowledged messages.
///
/// The limit keeps the packet identifiers of unacknowledged messages unique. Packet identifiers
/// wrap around after 65,535. Mosquitto 2.0 may reuse the identifier of an unacknowledged message,
/// because after a reconnect Mosquitto sends all stored messages and ignores its own in-flight
/// limit. The limit also bounds the memory of small messages, and 30,000 messages were not faster.
const MAX_IN_FLIGHT_MESSAGES: usize = 12_000;
/// Reading always continues while fewer bytes than this are in flight. Otherwise ingest would stop if
/// other components of the process used the whole message budget.
const MIN_IN_FLIGHT_BYTES: usize = 8 * 1024 * 1024;
/// After a limit was reached, reading resumes when fewer messages than this are in flight. Resuming
/// after each acknowledgement would be slow, because only one message would be read at a time.
const RESUME_BELOW_MESSAGES: usize = MAX_IN_FLIGHT_MESSAGES / 2;

/// Maximum memory for QoS 0 messages. The limit is necessary, because MQTT has no flow control for
/// QoS 0 messages.
const MAX_QOS0_BYTES: usize = 16 * 1024 * 1024;
/// Memory that a message needs in addition to its payload.
const MESSAGE_OVERHEAD_BYTES: usize = 512;

/// Counts the messages that are not acknowledged yet. Clones share the same counters.
#[derive(Clone)]
pub(super) struct InFlightCounter {
    counts: Arc<InFlightCounts>,
    message_budget: ByteBudget,
}

#[derive(Default)]
struct InFlightCounts {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    decrease_notifier: Notify,
}

impl InFlightCounter {
    pub fn new(message_budget: ByteBudget) -> Self {
        Self {
            counts: Arc::default(),
            message_budget,
        }
    }

    /// Counts a message and reserves its memory until the guard is dropped.
    pub fn add_message(&self, payload_bytes: usize) -> InFlightGuard {
        let reservation = self
            .message_budget
            .reserve(payload_bytes + MESSAGE_OVERHEAD_BYTES);
        self.counts.messages.fetch_add(1, Ordering::Relaxed);
        self.counts
            .bytes
            .fetch_add(reservation.bytes(), Ordering::Relaxed);
        InFlightGuard {
            counts: self.counts.clone(),
            counted_bytes: reservation.bytes(),
            reservation,
        }
    }

    /// If a limit is reached, waits until reading may resume. Otherwise returns immediately.
    pub async fn wait_for_capacity(&self) {
        let limit = self.message_budget.limit();
        if !self.has_reached_limit(MAX_IN_FLIGHT_MESSAGES, MIN_IN_FLIGHT_BYTES, limit / 2) {
            return;
        }
        loop {
            let decrease = self.counts.decrease_notifier.notified();
            if !self.has_reached_limit(
                RESUME_BELOW_MESSAGES,
                MIN_IN_FLIGHT_BYTES / 2,
                limit / 8 * 3,
            ) {
                return;
            }
            decrease.await;
        }
    }

    fn has_reached_limit(&self, max_messages: usize, min_bytes: usize, max_used: usize) -> bool {
        self.counts.messages.load(Ordering::Relaxed) >= max_messages
            || (self.counts.bytes.load(Ordering::Relaxed) >= min_bytes
                && self.message_budget.used() >= max_used)
    }
}

/// Counts one message in [`InFlightCounter`] until the guard is dropped.
pub(super) struct InFlightGuard {
    counts: Arc<InFlightCounts>,
    counted_bytes: usize,
    reservation: ByteReservation,
}

impl InFlightGuard {
    /// Ends the reservation of the message in the message budget, because its new owner has a
    /// reservation of its own. The message still counts as in flight.
    pub fn release_reservation(&mut self) {
        self.reservation.shrink_to(0);
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        // The memory is released before the waiting task is notified.
        self.reservation.shrink_to(0);
        self.counts.messages.fetch_sub(1, Ordering::Relaxed);
        self.counts
            .bytes
            .fetch_sub(self.counted_bytes, Ordering::Relaxed);
        self.counts.decrease_notifier.notify_one();
    }
}

/// Memory budget of QoS 0 messages: a part of the message budget. Clones share the same budget.
#[derive(Clone)]
pub(super) struct Qos0Budget {
    qos0_bytes: ByteBudget,
    message_budget: ByteBudget,
}

impl Qos0Budget {
    pub fn new(message_budget: ByteBudget) -> Self {
        Self {
            qos0_bytes: ByteBudget::new(MAX_QOS0_BYTES),
            message_budget,
        }
    }

    /// Reserves memory for a message until the guard is dropped. Returns `None` if the message
    /// exceeds the remaining budget.
    pub fn try_reserve(&self, payload_bytes: usize) -> Option<Qos0Guard> {
        let bytes = payload_bytes + MESSAGE_OVERHEAD_BYTES;
        Some(Qos0Guard {
            _qos0_reservation: self.qos0_bytes.try_reserve(bytes)?,
            reservation: self.message_budget.try_reserve(bytes)?,
        })
    }
}

/// Reserves memory in a [`Qos0Budget`] until the guard is dropped.
pub(super) struct Qos0Guard {
    _qos0_reservation: ByteReservation,
    reservation: ByteReservation,
}

impl Qos0Guard {
    /// Ends the reservation of the message in the message budget, because its new owner has a
    /// reservation of its own.
    pub fn release_reservation(&mut self) {
        self.reservation.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const BUDGET_BYTES: usize = 128 * 1024 * 1024;

    #[test]
    fn reading_stops_at_the_message_limit_and_resumes_below_half_of_the_limit() {
        let in_flight = InFlightCounter::new(ByteBudget::new(BUDGET_BYTES));
        let mut guards: Vec<InFlightGuard> = (1..MAX_IN_FLIGHT_MESSAGES)
            .map(|_| in_flight.add_message(10))
            .collect();
        assert!(in_flight.wait_for_capacity().now_or_never().is_some());
        guards.push(in_flight.add_message(10));
        let waiting = in_flight.wait_for_capacity();
        let mut waiting = std::pin::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        guards.truncate(MAX_IN_FLIGHT_MESSAGES / 2);
        assert!(waiting.as_mut().now_or_never().is_none());
        guards.pop();
        assert!(waiting.now_or_never().is_some());
    }

    #[test]
    fn two_large_messages_can_reach_the_byte_limit() {
        let budget = ByteBudget::new(BUDGET_BYTES);
        let in_flight = InFlightCounter::new(budget.clone());
        let guards = [
            in_flight.add_message(BUDGET_BYTES / 4),
            in_flight.add_message(BUDGET_BYTES / 4),
        ];
        assert!(in_flight.wait_for_capacity().now_or_never().is_none());
        drop(guards);
        assert!(in_flight.wait_for_capacity().now_or_never().is_some());
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn message_of_the_recorder_counts_as_in_flight_without_a_reservation() {
        let budget = ByteBudget::new(BUDGET_BYTES);
        let in_flight = InFlightCounter::new(budget.clone());
        let mut guard = in_flight.add_message(BUDGET_BYTES);
        let reservation_of_recorder = budget.reserve(BUDGET_BYTES);
        guard.release_reservation();
        assert_eq!(budget.used(), BUDGET_BYTES);
        assert!(in_flight.wait_for_capacity().now_or_never().is_none());
        drop(reservation_of_recorder);
        assert!(in_flight.wait_for_capacity().now_or_never().is_some());
        drop(guard);
        assert_eq!(in_flight.counts.bytes.load(Ordering::Relaxed), 0);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn reading_continues_while_other_components_use_the_budget() {
        let budget = ByteBudget::new(BUDGET_BYTES);
        let _others = budget.reserve(BUDGET_BYTES);
        let in_flight = InFlightCounter::new(budget);
        let _guard = in_flight.add_message(MIN_IN_FLIGHT_BYTES / 2);
        assert!(in_flight.wait_for_capacity().now_or_never().is_some());
        let _guard = in_flight.add_message(MIN_IN_FLIGHT_BYTES / 2);
        assert!(in_flight.wait_for_capacity().now_or_never().is_none());
    }

    #[test]
    fn qos0_message_over_the_budget_is_rejected() {
        let message_budget = ByteBudget::new(BUDGET_BYTES);
        let budget = Qos0Budget::new(message_budget.clone());
        let guard = budget.try_reserve(MAX_QOS0_BYTES - MESSAGE_OVERHEAD_BYTES);
        assert!(guard.is_some());
        assert!(budget.try_reserve(0).is_none());
        drop(guard);
        assert!(budget.try_reserve(0).is_some());
        let _others = message_budget.reserve(BUDGET_BYTES);
        assert!(budget.try_reserve(0).is_none());
    }
}
