//! Limits for the messages of an external broker that are in memory at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Maximum number of unacknowledged messages.
///
/// The limit keeps the packet identifiers of unacknowledged messages unique. Packet identifiers
/// wrap around after 65,535. Mosquitto 2.0 may reuse the identifier of an unacknowledged message,
/// because after a reconnect Mosquitto sends all stored messages and ignores its own in-flight
/// limit.
const MAX_IN_FLIGHT_MESSAGES: usize = 30_000;
/// Maximum total size of the unacknowledged payloads.
const MAX_IN_FLIGHT_BYTES: usize = 64 * 1024 * 1024;
/// After a limit was reached, reading resumes when fewer messages than this are in flight. Resuming
/// after each acknowledgement would be slow, because only one message would be read at a time.
const RESUME_BELOW_MESSAGES: usize = MAX_IN_FLIGHT_MESSAGES / 2;
/// After a limit was reached, reading resumes when fewer bytes than this are in flight.
const RESUME_BELOW_BYTES: usize = MAX_IN_FLIGHT_BYTES / 2;

/// Maximum memory for QoS 0 messages. The limit is necessary, because MQTT has no flow control for
/// QoS 0 messages.
const MAX_QOS0_BYTES: usize = 32 * 1024 * 1024;
/// Memory that a QoS 0 message needs in addition to its payload.
const QOS0_OVERHEAD_BYTES: usize = 512;

/// Counts the messages that are not acknowledged yet. Clones share the same counters.
#[derive(Clone, Default)]
pub(super) struct InFlightCounter(Arc<InFlightCounts>);

#[derive(Default)]
struct InFlightCounts {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    decrease_notifier: Notify,
}

impl InFlightCounter {
    /// Counts a message until the guard is dropped.
    pub fn add_message(&self, payload_bytes: usize) -> InFlightGuard {
        self.0.messages.fetch_add(1, Ordering::Relaxed);
        self.0.bytes.fetch_add(payload_bytes, Ordering::Relaxed);
        InFlightGuard {
            in_flight: self.clone(),
            payload_bytes,
        }
    }

    /// If a limit is reached, waits until reading may resume. Otherwise returns immediately.
    pub async fn wait_for_capacity(&self) {
        if !self.has_reached_limit(MAX_IN_FLIGHT_MESSAGES, MAX_IN_FLIGHT_BYTES) {
            return;
        }
        loop {
            let decrease = self.0.decrease_notifier.notified();
            if !self.has_reached_limit(RESUME_BELOW_MESSAGES, RESUME_BELOW_BYTES) {
                return;
            }
            decrease.await;
        }
    }

    fn has_reached_limit(&self, max_messages: usize, max_bytes: usize) -> bool {
        self.0.messages.load(Ordering::Relaxed) >= max_messages
            || self.0.bytes.load(Ordering::Relaxed) >= max_bytes
    }
}

/// Counts one message in [`InFlightCounter`] until the guard is dropped.
pub(super) struct InFlightGuard {
    in_flight: InFlightCounter,
    payload_bytes: usize,
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let counters = &self.in_flight.0;
        counters.messages.fetch_sub(1, Ordering::Relaxed);
        counters
            .bytes
            .fetch_sub(self.payload_bytes, Ordering::Relaxed);
        counters.decrease_notifier.notify_one();
    }
}

/// Memory budget of QoS 0 messages. Clones share the same budget.
#[derive(Clone, Default)]
pub(super) struct Qos0Budget {
    used_bytes: Arc<AtomicUsize>,
}

impl Qos0Budget {
    /// Reserves memory for a message until the guard is dropped. Returns `None` if the message
    /// exceeds the remaining budget.
    pub fn try_reserve(&self, payload_bytes: usize) -> Option<Qos0Guard> {
        let bytes = payload_bytes + QOS0_OVERHEAD_BYTES;
        let guard = Qos0Guard {
            budget: self.clone(),
            bytes,
        };
        let used_before = self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        (used_before + bytes <= MAX_QOS0_BYTES).then_some(guard)
    }
}

/// Reserves memory in a [`Qos0Budget`] until the guard is dropped.
pub(super) struct Qos0Guard {
    budget: Qos0Budget,
    bytes: usize,
}

impl Drop for Qos0Guard {
    fn drop(&mut self) {
        self.budget
            .used_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn reading_stops_at_the_message_limit_and_resumes_below_half_of_the_limit() {
        let in_flight = InFlightCounter::default();
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
        let in_flight = InFlightCounter::default();
        let guards = [
            in_flight.add_message(MAX_IN_FLIGHT_BYTES / 2),
            in_flight.add_message(MAX_IN_FLIGHT_BYTES / 2),
        ];
        assert!(in_flight.wait_for_capacity().now_or_never().is_none());
        drop(guards);
        assert!(in_flight.wait_for_capacity().now_or_never().is_some());
    }

    #[test]
    fn qos0_message_over_the_budget_is_rejected() {
        let budget = Qos0Budget::default();
        let guard = budget.try_reserve(MAX_QOS0_BYTES - QOS0_OVERHEAD_BYTES);
        assert!(guard.is_some());
        assert!(budget.try_reserve(0).is_none());
        drop(guard);
        assert!(budget.try_reserve(0).is_some());
    }
}
