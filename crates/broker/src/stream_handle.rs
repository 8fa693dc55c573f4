//! State that the stream and the session of one connection share.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use protocol::OriginalPayload;
use service::ByteReservation;

/// Connects the stream of one connection with its session. All clones refer to the same stream.
#[derive(Debug, Clone, Default)]
pub(super) struct StreamHandle(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    is_aborted: AtomicBool,
    has_packet_after_connect: AtomicBool,
    large_payload: Mutex<Option<LargePayload>>,
    /// Memory of a large CONNECT packet. The session also has this handle, and `mqtt5` drops the
    /// session only after it has published or discarded the last will. Therefore the memory is
    /// reserved as long as copies of the last will exist.
    connect_reservation: Mutex<Option<ByteReservation>>,
}

/// The payload of a large PUBLISH packet, which does not pass through `mqtt5`.
#[derive(Debug)]
pub(super) struct LargePayload {
    /// The payload, or its start.
    pub payload: Bytes,
    /// Size and hash of the complete payload, if `payload` is only its start.
    pub truncated_from: Option<OriginalPayload>,
    /// Memory of the payload in the message budget.
    pub reservation: ByteReservation,
}

impl StreamHandle {
    /// Aborts the stream: every later read and write fails.
    pub fn abort(&self) {
        self.0.is_aborted.store(true, Ordering::Release);
    }

    /// # Errors
    /// When the stream was aborted.
    pub fn check_not_aborted(&self) -> io::Result<()> {
        if self.0.is_aborted.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }

    /// Records that the client has sent a packet after its CONNECT packet.
    pub fn set_has_packet_after_connect(&self) {
        self.0
            .has_packet_after_connect
            .store(true, Ordering::Relaxed);
    }

    /// Returns whether the client has sent a packet after its CONNECT packet. The client has then
    /// received the CONNACK packet.
    pub fn has_packet_after_connect(&self) -> bool {
        self.0.has_packet_after_connect.load(Ordering::Relaxed)
    }

    /// Stores the reservation of a large CONNECT packet until all handles are dropped.
    pub fn set_connect_reservation(&self, reservation: ByteReservation) {
        *self.0.connect_reservation.lock() = Some(reservation);
    }

    /// Stores the payload of the packet that `mqtt5` processes next.
    pub fn set_large_payload(&self, payload: LargePayload) {
        *self.0.large_payload.lock() = Some(payload);
    }

    /// Returns the payload of the packet that `mqtt5` currently processes. Returns `None` if the
    /// packet is small and `mqtt5` has its payload.
    pub fn take_large_payload(&self) -> Option<LargePayload> {
        self.0.large_payload.lock().take()
    }

    /// Frees the payload of a packet that `mqtt5` has processed.
    pub fn discard_large_payload(&self) {
        drop(self.take_large_payload());
    }
}
