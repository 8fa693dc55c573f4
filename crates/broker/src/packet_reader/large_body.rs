//! The body of a large PUBLISH packet, while it is received.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, Sleep};

use super::{MAX_SMALL_PACKET_BYTES, PacketLimits};
use crate::large_packets::{Admission, LargePackets};
use crate::packet_format::{FixedHeader, encode_packet, publish_payload_offset};
use crate::stream_handle::LargePayload;
use protocol::{MAX_RESPONSE_BYTES, PayloadTruncator, TRUNCATED_PAYLOAD_BYTES};

/// If other packets wait for memory, a packet is aborted when its client has sent nothing for this
/// time.
pub(super) const MAX_STALL_TIME: Duration = Duration::from_secs(1);
/// Interval at which the reader checks whether a packet has stalled.
const STALL_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Each part of a packet of this size may take `broker.packet_timeout`.
const TIMEOUT_UNIT_BYTES: usize = 1024 * 1024;

/// A large packet that waits for memory.
pub(super) struct WaitForMemory {
    header: FixedHeader,
    admission: Pin<Box<dyn Future<Output = Admission> + Send + Sync>>,
    timeout: Pin<Box<Sleep>>,
}

impl WaitForMemory {
    pub fn new(header: FixedHeader, limits: &PacketLimits) -> Self {
        let memory = if is_truncated(&header) {
            MAX_SMALL_PACKET_BYTES + TRUNCATED_PAYLOAD_BYTES
        } else {
            header.packet_len()
        };
        Self {
            header,
            admission: Box::pin(limits.large_packets.clone().admit(memory)),
            timeout: Box::pin(tokio::time::sleep(limits.packet_timeout)),
        }
    }

    /// Waits for memory. Returns `None` after the timeout.
    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        limits: &PacketLimits,
    ) -> Poll<Option<LargeBody>> {
        if let Poll::Ready(admission) = self.admission.as_mut().poll(context) {
            return Poll::Ready(Some(LargeBody::new(self.header, admission, limits)));
        }
        self.timeout.as_mut().poll(context).map(|()| None)
    }
}

/// Returns whether only the start of the payload is kept, because no message with such a payload is
/// ever accepted.
fn is_truncated(header: &FixedHeader) -> bool {
    header.body_len > MAX_RESPONSE_BYTES + MAX_SMALL_PACKET_BYTES
}

/// The body of a large packet that is received.
pub(super) struct LargeBody {
    first_byte: u8,
    content: Content,
    missing_len: usize,
    admission: Admission,
    deadline: Instant,
    last_received_at: Instant,
    next_check: Pin<Box<Sleep>>,
}

enum Content {
    Complete(Vec<u8>),
    /// The body begins with the topic and the properties. `start` contains them when it is
    /// complete, and `payload` then gets the bytes that follow.
    Truncated {
        start: Vec<u8>,
        payload: Option<PayloadTruncator>,
    },
}

/// The position of the payload in the packet could not be determined.
#[derive(Debug)]
pub(super) struct NoPayload;

impl LargeBody {
    fn new(header: FixedHeader, admission: Admission, limits: &PacketLimits) -> Self {
        let content = if is_truncated(&header) {
            Content::Truncated {
                start: Vec::new(),
                payload: None,
            }
        } else {
            Content::Complete(Vec::with_capacity(header.body_len))
        };
        let timeout_units = header.body_len.div_ceil(TIMEOUT_UNIT_BYTES);
        let timeout_units = u32::try_from(timeout_units).unwrap_or(u32::MAX);
        let now = Instant::now();
        Self {
            first_byte: header.first_byte,
            content,
            missing_len: header.body_len,
            admission,
            deadline: now + limits.packet_timeout.saturating_mul(timeout_units),
            last_received_at: now,
            next_check: Box::pin(tokio::time::sleep(STALL_CHECK_INTERVAL)),
        }
    }

    pub fn is_complete(&self) -> bool {
        self.missing_len == 0
    }

    /// Adds bytes up to the end of the body. Returns the number of added bytes.
    pub fn append(&mut self, bytes: &[u8], uses_mqtt_v5: bool) -> Result<usize, NoPayload> {
        let bytes = &bytes[..bytes.len().min(self.missing_len)];
        if bytes.is_empty() {
            return Ok(0);
        }
        match &mut self.content {
            Content::Complete(body) => body.extend_from_slice(bytes),
            Content::Truncated {
                payload: Some(payload),
                ..
            } => payload.append(bytes),
            Content::Truncated { start, payload } => {
                start.extend_from_slice(bytes);
                // The body is longer than this, so this branch is reached for each packet.
                if start.len() >= MAX_SMALL_PACKET_BYTES {
                    let offset = payload_offset(self.first_byte, start, uses_mqtt_v5)?;
                    let mut truncator = PayloadTruncator::default();
                    truncator.append(&start[offset..]);
                    start.truncate(offset);
                    *payload = Some(truncator);
                }
            }
        }
        self.missing_len -= bytes.len();
        self.last_received_at = Instant::now();
        Ok(bytes.len())
    }

    /// Splits the complete body into a packet without payload, for `mqtt5`, and the payload.
    pub fn finish(self, uses_mqtt_v5: bool) -> Result<(Vec<u8>, LargePayload), NoPayload> {
        let (start, payload, truncated_from) = match self.content {
            Content::Complete(body) => {
                let body = Bytes::from(body);
                let offset = payload_offset(self.first_byte, &body, uses_mqtt_v5)?;
                (body.slice(..offset), body.slice(offset..), None)
            }
            Content::Truncated { start, payload } => {
                let (payload, original) = payload.ok_or(NoPayload)?.finish();
                (start.into(), payload, Some(original))
            }
        };
        let payload = LargePayload {
            payload,
            truncated_from,
            reservation: self.admission.into_reservation(),
        };
        Ok((encode_packet(self.first_byte, &start), payload))
    }

    /// Returns whether the packet has exceeded its timeout, or has stalled while other packets wait
    /// for memory. Otherwise registers the task for the next check.
    pub fn poll_is_too_slow(&mut self, context: &mut Context<'_>, packets: &LargePackets) -> bool {
        while self.next_check.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            let has_stalled = now - self.last_received_at >= MAX_STALL_TIME;
            if now >= self.deadline || (has_stalled && packets.are_packets_waiting()) {
                return true;
            }
            let next_check = (now + STALL_CHECK_INTERVAL).min(self.deadline);
            self.next_check.as_mut().reset(next_check);
        }
        false
    }
}

/// Returns the offset of the payload. `body` contains at least the start of the body.
fn payload_offset(first_byte: u8, body: &[u8], uses_mqtt_v5: bool) -> Result<usize, NoPayload> {
    let offset = publish_payload_offset(first_byte, body, uses_mqtt_v5).map_err(|_| NoPayload)?;
    if offset > MAX_SMALL_PACKET_BYTES {
        return Err(NoPayload);
    }
    Ok(offset)
}
