//! Limits on the messages of an external broker that this process holds in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Maximum number of unacknowledged messages.
///
/// The limit keeps packet identifiers unique. They wrap around after 65,535, and Mosquitto 2.0 may
/// reuse an identifier that is still unacknowledged: after a reconnect it sends all stored messages
/// and ignores its own in-flight limit.
const MAX_MESSAGES: usize = 30_000;
/// Maximum size of the unacknowledged payloads.
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// At a limit, reading resumes when messages and bytes have dropped below these values. Resuming
/// after each acknowledgement would read one message at a time, which is slow.
const RESUME_MESSAGES: usize = MAX_MESSAGES / 2;
const RESUME_BYTES: usize = MAX_BYTES / 2;

/// Maximum memory for QoS 0 messages. MQTT has no flow control for them.
const MAX_QOS0_BYTES: usize = 32 * 1024 * 1024;
/// Memory that a QoS 0 message needs in addition to its payload.
const QOS0_OVERHEAD_BYTES: usize = 512;

/// Counts messages that are not acknowledged yet. Clones share the same counters.
#[derive(Clone, Default)]
pub(super) struct InFlight(Arc<Counters>);

#[derive(Default)]
struct Counters {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    decreased: Notify,
}

impl InFlight {
    /// Counts a message until the guard is dropped.
    pub fn add(&self, payload_bytes: usize) -> InFlightGuard {
        self.0.messages.fetch_add(1, Ordering::Relaxed);
        self.0.bytes.fetch_add(payload_bytes, Ordering::Relaxed);
        InFlightGuard {
            in_flight: self.clone(),
            payload_bytes,
        }
    }

    /// Returns at once below the limits. At a limit, waits until reading may resume.
    pub async fn wait_for_capacity(&self) {
        if !self.has_reached(MAX_MESSAGES, MAX_BYTES) {
            return;
        }
        loop {
            let decreased = self.0.decreased.notified();
            if !self.has_reached(RESUME_MESSAGES, RESUME_BYTES) {
                return;
            }
            decreased.await;
        }
    }

    fn has_reached(&self, messages: usize, bytes: usize) -> bool {
        self.0.messages.load(Ordering::Relaxed) >= messages
            || self.0.bytes.load(Ordering::Relaxed) >= bytes
    }
}

/// Counts one message in [`InFlight`] until the guard is dropped.
pub(super) struct InFlightGuard {
    in_flight: InFlight,
    payload_bytes: usize,
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let counters = &self.in_flight.0;
        counters.messages.fetch_sub(1, Ordering::Relaxed);
        counters
            .bytes
            .fetch_sub(self.payload_bytes, Ordering::Relaxed);
        counters.decreased.notify_one();
    }
}

/// Memory budget of QoS 0 messages. Clones share the same budget.
#[derive(Clone, Default)]
pub(super) struct Qos0Budget {
    used_bytes: Arc<AtomicUsize>,
}

impl Qos0Budget {
    /// Reserves memory for a message until the guard is dropped. Returns `None` if the budget is
    /// used up.
    pub fn try_reserve(&self, payload_bytes: usize) -> Option<Qos0Guard> {
        let bytes = payload_bytes + QOS0_OVERHEAD_BYTES;
        let guard = Qos0Guard {
            budget: self.clone(),
            bytes,
        };
        let before = self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        (before + bytes <= MAX_QOS0_BYTES).then_some(guard)
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
    fn at_the_message_limit_capacity_returns_below_half() {
        let in_flight = InFlight::default();
        let mut guards: Vec<InFlightGuard> = (1..MAX_MESSAGES).map(|_| in_flight.add(10)).collect();
        assert!(in_flight.wait_for_capacity().now_or_never().is_some());
        guards.push(in_flight.add(10));
        let waiting = in_flight.wait_for_capacity();
        let mut waiting = std::pin::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        guards.truncate(MAX_MESSAGES / 2);
        assert!(waiting.as_mut().now_or_never().is_none());
        guards.pop();
        assert!(waiting.now_or_never().is_some());
    }

    #[test]
    fn two_large_messages_reach_the_byte_limit() {
        let in_flight = InFlight::default();
        let guards = [in_flight.add(MAX_BYTES / 2), in_flight.add(MAX_BYTES / 2)];
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
