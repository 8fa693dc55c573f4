//! A limit on the total size of the data that several queues hold in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts the bytes that queues and buffers hold, and lets their producers wait until there is
/// room. All clones share the same counter.
#[derive(Clone, Debug)]
pub struct ByteBudget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: usize,
    used: AtomicUsize,
    released: Notify,
}

impl ByteBudget {
    /// Creates an unused budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Inner {
            limit,
            used: AtomicUsize::new(0),
            released: Notify::new(),
        }))
    }

    /// Returns the limit in bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Returns the number of reserved bytes. The number can exceed the limit, because
    /// [`reserve`](Self::reserve) never fails.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Acquire)
    }

    /// Reserves bytes until the reservation is dropped, even if this exceeds the limit. For data
    /// that is already in memory.
    #[must_use]
    pub fn reserve(&self, bytes: usize) -> ByteReservation {
        self.0.used.fetch_add(bytes, Ordering::AcqRel);
        ByteReservation {
            budget: self.clone(),
            bytes,
        }
    }

    /// Reserves bytes until the reservation is dropped. Returns `None` if this would exceed the
    /// limit.
    #[must_use]
    pub fn try_reserve(&self, bytes: usize) -> Option<ByteReservation> {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.0.limit);
        self.0
            .used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fits)
            .ok()?;
        Some(ByteReservation {
            budget: self.clone(),
            bytes,
        })
    }

    /// Waits until at most `bytes` bytes are reserved. This function is cancel safe.
    pub async fn wait_until_at_most(&self, bytes: usize) {
        loop {
            let released = self.0.released.notified();
            tokio::pin!(released);
            // Registers for a notification before the check, so that no release is missed.
            released.as_mut().enable();
            if self.used() <= bytes {
                return;
            }
            released.await;
        }
    }
}

/// Bytes of a [`ByteBudget`] that are reserved until this value is dropped.
#[derive(Debug)]
pub struct ByteReservation {
    budget: ByteBudget,
    bytes: usize,
}

impl ByteReservation {
    /// Returns the number of reserved bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves fewer bytes from now on, for example because only a part of the data is kept.
    pub fn shrink_to(&mut self, bytes: usize) {
        let released = self.bytes.saturating_sub(bytes);
        self.bytes -= released;
        self.budget.release(released);
    }
}

impl ByteBudget {
    fn release(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::AcqRel);
        self.0.released.notify_waiters();
    }
}

impl Drop for ByteReservation {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn try_reserve_fails_above_the_limit_and_succeeds_after_a_release() {
        let budget = ByteBudget::new(10);
        let first = budget.try_reserve(7);
        assert!(first.is_some());
        assert!(budget.try_reserve(4).is_none());
        assert_eq!(budget.used(), 7);
        drop(first);
        assert!(budget.try_reserve(10).is_some());
    }

    #[test]
    fn reserve_can_exceed_the_limit_and_shrinks() {
        let budget = ByteBudget::new(10);
        let mut reservation = budget.reserve(25);
        assert_eq!(budget.used(), 25);
        reservation.shrink_to(5);
        assert_eq!((budget.used(), reservation.bytes()), (5, 5));
        reservation.shrink_to(9);
        assert_eq!(budget.used(), 5);
        drop(reservation);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn wait_until_at_most_waits_for_enough_releases() {
        let budget = ByteBudget::new(10);
        let first = budget.reserve(6);
        let second = budget.reserve(6);
        let waiting = budget.wait_until_at_most(5);
        let mut waiting = std::pin::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(first);
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(second);
        waiting.await;
    }
}
