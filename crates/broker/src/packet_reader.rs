//! Reads the packets of one connection for `mqtt5`, and limits their memory.
//!
//! `mqtt5` buffers each packet until it is complete, and does not free the buffer while the
//! connection is open. Therefore `mqtt5` gets only small packets:
//! - The reader passes on small packets unchanged.
//! - The reader buffers a large PUBLISH packet itself, after [`LargePackets`] has admitted the
//!   packet. `mqtt5` gets the packet without its payload, and the session gets the payload through
//!   the [`StreamHandle`].
//! - A large CONNECT packet counts against a budget of its own until the session is dropped. With
//!   a will delay, this is after the end of the connection.
//! - Other large packets are an error.
//!
//! The reader returns bytes of only one packet at a time. When `mqtt5` reads again, it has therefore
//! processed all earlier packets.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::large_packets::{Admission, LargePackets};
use super::metrics;
use super::packet_format::{CONNECT, FixedHeader, PUBLISH, encode_packet, publish_payload_offset};
use super::pending_connections::PendingSlot;
use super::rejection::RejectionReason;
use super::stream_handle::{LargePayload, StreamHandle};
use service::ByteBudget;

/// Maximum size of a packet that `mqtt5` may buffer. The read buffer of `mqtt5` has this size from
/// the beginning.
const MAX_SMALL_PACKET_BYTES: usize = 4096;
const MAX_CONNECT_PACKET_BYTES: usize = 64 * 1024;
/// Maximum number of copies of a CONNECT packet that are in memory. `mqtt5` stores the last will in
/// its read buffer, in the connection, and in the session, and the broker keeps an offline message.
const CONNECT_PACKET_COPIES: usize = 4;
/// If other packets wait for memory, a packet is aborted when its client has sent nothing for this
/// time.
const MAX_STALL_TIME: Duration = Duration::from_secs(1);
/// Interval at which the reader checks whether a packet has stalled.
const STALL_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Number of bytes that are read from the network at once.
const READ_BYTES: usize = 4096;

/// Limits that the readers of all connections share.
#[derive(Debug)]
pub(super) struct PacketLimits {
    pub max_packet_size: usize,
    /// Maximum time that a large packet waits for memory. Also the maximum time from then until the
    /// last byte of the packet.
    pub packet_timeout: Duration,
    pub large_packets: Arc<LargePackets>,
    /// Budget for the CONNECT packets that are not small.
    pub connect_budget: ByteBudget,
}

/// Reads the packets of one connection.
pub(super) struct PacketReader {
    limits: Arc<PacketLimits>,
    peer: SocketAddr,
    handle: StreamHandle,
    /// Counts the connection as pending until its CONNECT packet is complete.
    pending_slot: Option<PendingSlot>,
    /// Bytes from the network that are not processed yet.
    input: Vec<u8>,
    state: State,
}

/// What the reader does with the next bytes.
enum State {
    /// The fixed header of the next packet is not complete.
    Header,
    /// The packet is passed on to `mqtt5`.
    PassOn { remaining: usize },
    /// A large PUBLISH packet waits for memory.
    WaitForMemory(Box<WaitForMemory>),
    /// The body of a large PUBLISH packet is read.
    LargeBody(Box<LargeBody>),
    /// A large PUBLISH packet without its payload is passed on to `mqtt5`.
    PassOnWithoutPayload { packet: Vec<u8>, position: usize },
}

struct WaitForMemory {
    header: FixedHeader,
    admission: Pin<Box<dyn Future<Output = Admission> + Send + Sync>>,
    timeout: Pin<Box<Sleep>>,
}

struct LargeBody {
    first_byte: u8,
    body: Vec<u8>,
    body_len: usize,
    admission: Admission,
    deadline: Instant,
    last_received_at: Instant,
    next_check: Pin<Box<Sleep>>,
}

impl PacketReader {
    pub fn new(
        limits: Arc<PacketLimits>,
        peer: SocketAddr,
        handle: StreamHandle,
        pending_slot: PendingSlot,
    ) -> Self {
        Self {
            limits,
            peer,
            handle,
            pending_slot: Some(pending_slot),
            input: Vec::new(),
            state: State::Header,
        }
    }

    /// Reads bytes of the current packet from `stream` into `buffer`. Reads nothing at the end of
    /// the stream.
    pub fn poll_read(
        &mut self,
        mut stream: impl AsyncRead + Unpin,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if matches!(self.state, State::Header) {
            // `mqtt5` has processed all earlier packets. A payload that is still there belongs to a
            // rejected packet.
            self.handle.discard_large_payload();
        }
        loop {
            if self.process_input(context, buffer)? {
                return Poll::Ready(Ok(()));
            }
            if matches!(self.state, State::WaitForMemory(_)) {
                return Poll::Pending;
            }
            let mut chunk = [MaybeUninit::uninit(); READ_BYTES];
            let mut received = ReadBuf::uninit(&mut chunk);
            match Pin::new(&mut stream).poll_read(context, &mut received) {
                Poll::Ready(result) => result?,
                Poll::Pending => {
                    self.check_large_body(context)?;
                    return Poll::Pending;
                }
            }
            if received.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.add_input(received.filled());
        }
    }

    /// Processes the input until more input is needed. Returns true if bytes were written to
    /// `buffer`.
    fn process_input(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> io::Result<bool> {
        loop {
            match &mut self.state {
                State::Header => match FixedHeader::parse(&self.input)? {
                    Some(header) => self.state = self.start_packet(header)?,
                    None => return Ok(false),
                },
                State::PassOn { remaining } => {
                    let count = (*remaining).min(self.input.len()).min(buffer.remaining());
                    if count == 0 {
                        return Ok(false);
                    }
                    buffer.put_slice(&self.input[..count]);
                    *remaining -= count;
                    if *remaining == 0 {
                        self.state = State::Header;
                        // The first packet is the CONNECT packet.
                        self.pending_slot = None;
                    }
                    self.remove_input(count);
                    return Ok(true);
                }
                State::WaitForMemory(wait) => match wait.poll(context) {
                    Poll::Ready(Some(admission)) => {
                        let large = LargeBody::new(wait.header, admission, &self.limits);
                        self.state = State::LargeBody(Box::new(large));
                    }
                    Poll::Ready(None) => return Err(self.reject(RejectionReason::Overloaded)),
                    Poll::Pending => return Ok(false),
                },
                State::LargeBody(large) => {
                    let count = large.missing_len().min(self.input.len());
                    large.append(&self.input[..count]);
                    let is_complete = large.missing_len() == 0;
                    self.remove_input(count);
                    if !is_complete {
                        return Ok(false);
                    }
                    self.finish_large_packet()?;
                }
                State::PassOnWithoutPayload { packet, position } => {
                    let count = (packet.len() - *position).min(buffer.remaining());
                    buffer.put_slice(&packet[*position..*position + count]);
                    *position += count;
                    if *position == packet.len() {
                        self.state = State::Header;
                    }
                    return Ok(true);
                }
            }
        }
    }

    /// Decides what to do with the packet whose fixed header is at the start of the input.
    fn start_packet(&mut self, header: FixedHeader) -> io::Result<State> {
        let packet_len = header.packet_len();
        let is_first_packet = self.pending_slot.is_some();
        let is_small = packet_len <= MAX_SMALL_PACKET_BYTES;
        if packet_len > self.limits.max_packet_size {
            return Err(self.reject(RejectionReason::PacketTooLarge));
        }
        if is_first_packet {
            if header.packet_type() != CONNECT {
                return Err(self.reject(RejectionReason::NoConnectPacket));
            }
            if packet_len > MAX_CONNECT_PACKET_BYTES {
                return Err(self.reject(RejectionReason::PacketTooLarge));
            }
            if !is_small {
                let memory = packet_len * CONNECT_PACKET_COPIES;
                let Some(reservation) = self.limits.connect_budget.try_reserve(memory) else {
                    return Err(self.reject(RejectionReason::TooManyLargeConnectPackets));
                };
                self.handle.set_connect_reservation(reservation);
            }
        } else if !is_small {
            if header.packet_type() != PUBLISH {
                return Err(self.reject(RejectionReason::PacketTooLarge));
            }
            self.remove_input(header.header_len);
            return Ok(State::WaitForMemory(Box::new(WaitForMemory {
                header,
                admission: Box::pin(self.limits.large_packets.clone().admit(packet_len)),
                timeout: Box::pin(tokio::time::sleep(self.limits.packet_timeout)),
            })));
        }
        Ok(State::PassOn {
            remaining: packet_len,
        })
    }

    /// Splits a complete large PUBLISH packet into its header, for `mqtt5`, and its payload.
    fn finish_large_packet(&mut self) -> io::Result<()> {
        let State::LargeBody(large) = std::mem::replace(&mut self.state, State::Header) else {
            return Ok(());
        };
        let body = Bytes::from(large.body);
        let uses_mqtt_v5 = self.handle.uses_mqtt_v5();
        let payload_offset = publish_payload_offset(large.first_byte, &body, uses_mqtt_v5)?;
        if payload_offset > MAX_SMALL_PACKET_BYTES {
            return Err(self.reject(RejectionReason::PacketTooLarge));
        }
        self.state = State::PassOnWithoutPayload {
            packet: encode_packet(large.first_byte, &body[..payload_offset]),
            position: 0,
        };
        self.handle.set_large_payload(LargePayload {
            payload: body.slice(payload_offset..),
            reservation: large.admission.into_reservation(),
        });
        Ok(())
    }

    /// Fails if the client sends the body of its large packet too slowly.
    fn check_large_body(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if let State::LargeBody(large) = &mut self.state
            && large.poll_is_too_slow(context, &self.limits.large_packets)
        {
            return Err(self.reject(RejectionReason::PacketTimeout));
        }
        Ok(())
    }

    /// Adds bytes from the network. The body of a large packet does not pass through the input.
    fn add_input(&mut self, mut bytes: &[u8]) {
        if let State::LargeBody(large) = &mut self.state {
            let count = large.missing_len().min(bytes.len());
            large.append(&bytes[..count]);
            bytes = &bytes[count..];
        }
        self.input.extend_from_slice(bytes);
    }

    /// Removes bytes from the start of the input. Frees the memory of the input when it is empty,
    /// because most connections are idle most of the time.
    fn remove_input(&mut self, count: usize) {
        if count == self.input.len() {
            self.input = Vec::new();
        } else {
            self.input.drain(..count);
        }
    }

    fn reject(&self, reason: RejectionReason) -> io::Error {
        metrics::count_broker_rejection(reason.as_str(), &self.peer);
        io::Error::new(io::ErrorKind::InvalidData, reason.as_str())
    }
}

impl WaitForMemory {
    /// Waits for memory. Returns `None` after the timeout.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Admission>> {
        if let Poll::Ready(admission) = self.admission.as_mut().poll(context) {
            return Poll::Ready(Some(admission));
        }
        self.timeout.as_mut().poll(context).map(|()| None)
    }
}

impl LargeBody {
    fn new(header: FixedHeader, admission: Admission, limits: &PacketLimits) -> Self {
        let now = Instant::now();
        Self {
            first_byte: header.first_byte,
            body: Vec::with_capacity(header.body_len),
            body_len: header.body_len,
            admission,
            deadline: now + limits.packet_timeout,
            last_received_at: now,
            next_check: Box::pin(tokio::time::sleep(STALL_CHECK_INTERVAL)),
        }
    }

    fn missing_len(&self) -> usize {
        self.body_len - self.body.len()
    }

    fn append(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.body.extend_from_slice(bytes);
            self.last_received_at = Instant::now();
        }
    }

    /// Returns whether the packet has exceeded its timeout, or has stalled while other packets wait
    /// for memory. Otherwise registers the task for the next check.
    fn poll_is_too_slow(&mut self, context: &mut Context<'_>, packets: &LargePackets) -> bool {
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

#[cfg(test)]
mod tests;
