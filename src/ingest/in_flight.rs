//! How much of an outside broker's messages is here: bounded in memory, and in what the broker waits
//! to hear of.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// So many messages at most are unacknowledged. Packet ids are counted to 65,535 and begin again, and
/// Mosquitto 2.0 does not care whether one is still in use: to a client that comes back it sends all
/// that waited, whatever its limit. Read no further, each id that is here is here once.
const MESSAGES_MOST: usize = 30_000;
/// And so many bytes of them.
const BYTES_MOST: usize = 64 * 1024 * 1024;

/// What messages with QoS 0 may take in memory: nobody holds the broker back from sending more.
const UNKEPT_MOST_BYTES: usize = 32 * 1024 * 1024;
/// What one takes besides its payload.
const EACH_BYTES: usize = 512;

/// Messages that the broker keeps until we acknowledge them. A clone is the same.
#[derive(Clone, Default)]
pub(super) struct InFlight(Arc<Held>);

#[derive(Default)]
struct Held {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    fewer: Notify,
}

impl InFlight {
    /// A share for a message of this size, until it is dropped.
    pub fn take(&self, payload: usize) -> InFlightGuard {
        self.0.messages.fetch_add(1, Ordering::Relaxed);
        self.0.bytes.fetch_add(payload, Ordering::Relaxed);
        InFlightGuard {
            of: self.clone(),
            payload,
        }
    }

    /// Waits until there is room for more: where there was none, until there is much. Reading message
    /// by message as each is acknowledged would be most of the work.
    pub async fn room(&self) {
        if !self.is_over(1) {
            return;
        }
        loop {
            let fewer = self.0.fewer.notified();
            if !self.is_over(2) {
                return;
            }
            fewer.await;
        }
    }

    /// Whether more is here than this part of the most.
    fn is_over(&self, part: usize) -> bool {
        self.0.messages.load(Ordering::Relaxed) >= MESSAGES_MOST / part
            || self.0.bytes.load(Ordering::Relaxed) >= BYTES_MOST / part
    }
}

/// A message's share.
pub(super) struct InFlightGuard {
    of: InFlight,
    payload: usize,
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.of.0.messages.fetch_sub(1, Ordering::Relaxed);
        self.of.0.bytes.fetch_sub(self.payload, Ordering::Relaxed);
        self.of.0.fewer.notify_one();
    }
}

/// Messages that the broker does not keep for us. A clone is the same.
#[derive(Clone, Default)]
pub(super) struct Qos0Budget(Arc<AtomicUsize>);

impl Qos0Budget {
    /// A share for a message of this size, until it is dropped; none if there is none left.
    pub fn take(&self, payload: usize) -> Option<Qos0Guard> {
        let bytes = payload + EACH_BYTES;
        let share = Qos0Guard {
            of: self.clone(),
            bytes,
        };
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        (before + bytes <= UNKEPT_MOST_BYTES).then_some(share)
    }
}

/// A message's share.
pub(super) struct Qos0Guard {
    of: Qos0Budget,
    bytes: usize,
}

impl Drop for Qos0Guard {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn where_there_was_no_room_there_is_some_when_half_is_acknowledged() {
        let held = InFlight::default();
        let mut shares: Vec<InFlightGuard> = (1..MESSAGES_MOST).map(|_| held.take(10)).collect();
        assert!(held.room().now_or_never().is_some());
        shares.push(held.take(10));
        let waiting = held.room();
        let mut waiting = std::pin::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        shares.truncate(MESSAGES_MOST / 2);
        assert!(waiting.as_mut().now_or_never().is_none());
        shares.pop();
        assert!(waiting.now_or_never().is_some());
    }

    #[test]
    fn few_large_messages_are_as_much_as_many_small_ones() {
        let held = InFlight::default();
        let shares = [held.take(BYTES_MOST / 2), held.take(BYTES_MOST / 2)];
        assert!(held.room().now_or_never().is_none());
        drop(shares);
        assert!(held.room().now_or_never().is_some());
    }

    #[test]
    fn what_the_broker_does_not_keep_is_taken_while_there_is_memory_for_it() {
        let held = Qos0Budget::default();
        let share = held.take(UNKEPT_MOST_BYTES - EACH_BYTES);
        assert!(share.is_some());
        assert!(held.take(0).is_none());
        drop(share);
        assert!(held.take(0).is_some());
    }
}
