//! Limits the memory of PUBLISH packets that are too large for the read buffer of `mqtt5`.
//!
//! A large packet waits for admission before the broker reads its body. Admission reserves the size
//! of the packet in the message budget of the process. Unfinished packets may use only a part of
//! this budget, because a client can delay the end of its packet.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use service::{ByteBudget, ByteReservation};

/// Maximum total size of the large packets that are not complete.
const MAX_UNFINISHED_BYTES: usize = 64 * 1024 * 1024;
/// Bytes per permit of the semaphore. A semaphore counts permits in 32 bits.
const BYTES_PER_PERMIT: usize = 1024;

/// Admits large packets. Packets that wait until other packets are complete are admitted in the order
/// of their requests. Packets that wait for the message budget are admitted in any order.
#[derive(Debug)]
pub(super) struct LargePackets {
    unfinished: Arc<Semaphore>,
    /// Number of packets that wait until other packets are complete.
    waiting_count: AtomicUsize,
    message_budget: ByteBudget,
}

/// Allows the broker to read the body of one large packet.
#[derive(Debug)]
pub(super) struct Admission {
    _unfinished: OwnedSemaphorePermit,
    reservation: ByteReservation,
}

impl Admission {
    /// Ends the part of the admission that limits unfinished packets. Returns the reservation of
    /// the packet in the message budget.
    pub fn into_reservation(self) -> ByteReservation {
        self.reservation
    }
}

impl LargePackets {
    pub fn new(message_budget: ByteBudget) -> Self {
        Self {
            unfinished: Arc::new(Semaphore::new(MAX_UNFINISHED_BYTES / BYTES_PER_PERMIT)),
            waiting_count: AtomicUsize::new(0),
            message_budget,
        }
    }

    /// Waits until there is memory for a packet of this size.
    pub async fn admit(self: Arc<Self>, packet_len: usize) -> Admission {
        // A larger packet is possible only if the operator has raised broker.max_packet_size.
        let counted_bytes = packet_len
            .min(MAX_UNFINISHED_BYTES)
            .min(self.message_budget.limit());
        let permit_count =
            u32::try_from(counted_bytes.div_ceil(BYTES_PER_PERMIT)).unwrap_or(u32::MAX);
        let permit = {
            let _waiting = WaitingGuard::new(&self.waiting_count);
            let permit = self.unfinished.clone().acquire_many_owned(permit_count);
            permit
                .await
                .expect("nothing closes the semaphore, so the acquisition cannot fail")
        };
        let reservation = self.reserve(counted_bytes).await;
        Admission {
            _unfinished: permit,
            reservation,
        }
    }

    /// Returns whether packets wait until other packets are complete.
    pub fn are_packets_waiting(&self) -> bool {
        self.waiting_count.load(Ordering::Acquire) > 0
    }

    async fn reserve(&self, bytes: usize) -> ByteReservation {
        let budget = &self.message_budget;
        loop {
            if let Some(reservation) = budget.try_reserve(bytes) {
                return reservation;
            }
            budget.wait_until_at_most(budget.limit() - bytes).await;
        }
    }
}

/// Counts a waiting packet until the guard is dropped, even if the wait is cancelled.
struct WaitingGuard<'a>(&'a AtomicUsize);

impl<'a> WaitingGuard<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const MIB: usize = 1024 * 1024;

    #[tokio::test]
    async fn unfinished_packets_use_only_a_part_of_the_budget() {
        let budget = ByteBudget::new(128 * MIB);
        let packets = Arc::new(LargePackets::new(budget.clone()));
        let mut admissions = Vec::new();
        while let Some(admission) = packets.clone().admit(MIB).now_or_never() {
            admissions.push(admission);
        }
        assert_eq!(admissions.len(), 64);
        assert_eq!(budget.used(), 64 * MIB);
        let waiting = packets.clone().admit(MIB);
        let mut waiting = std::pin::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(packets.are_packets_waiting());
        // The first packet is complete, but its message is not stored yet.
        let reservation = admissions.remove(0).into_reservation();
        drop(waiting.await);
        assert!(!packets.are_packets_waiting());
        assert_eq!(budget.used(), 64 * MIB);
        drop((reservation, admissions));
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn packets_wait_while_messages_use_the_budget() {
        let budget = ByteBudget::new(4 * MIB);
        let packets = Arc::new(LargePackets::new(budget.clone()));
        let queued_messages = budget.reserve(4 * MIB);
        let waiting = packets.clone().admit(MIB);
        let mut waiting = std::pin::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        // Other clients did not cause the delay.
        assert!(!packets.are_packets_waiting());
        drop(queued_messages);
        assert_eq!(waiting.await.into_reservation().bytes(), MIB);
    }

    #[tokio::test]
    async fn packet_that_exceeds_the_budget_is_admitted_alone() {
        let packets = Arc::new(LargePackets::new(ByteBudget::new(MIB)));
        let admission = packets.clone().admit(200 * MIB).await;
        assert!(packets.clone().admit(MIB).now_or_never().is_none());
        drop(admission);
        assert!(packets.admit(MIB).now_or_never().is_some());
    }
}
