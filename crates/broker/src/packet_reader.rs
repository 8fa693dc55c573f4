//! Reads the packets of one connection for `mqtt5`, after the CONNECT packet. Limits their memory,
//! and delays or drops the packets of a client that is over its budget.
//!
//! `mqtt5` buffers each packet until it is complete, and does not free the buffer while the
//! connection is open. Therefore `mqtt5` gets only small packets:
//! - The reader passes on small packets unchanged.
//! - The reader buffers a large PUBLISH packet itself, after [`LargePackets`] has admitted the
//!   packet. `mqtt5` gets the packet without its payload, and the session gets the payload through
//!   the [`StreamHandle`]. If the payload is too large for any message, only its start is kept.
//! - Other large packets are an error.
//!
//! The reader returns bytes of only one packet at a time. When `mqtt5` reads again, it has therefore
//! processed all earlier packets. While a packet is delayed, `mqtt5` can send messages to the client.

mod connection_budget;
mod large_body;

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::ReadBuf;

use super::budget_reports::BudgetReports;
use super::client_stream::PacketSource;
use super::large_packets::LargePackets;
use super::packet_format::{FixedHeader, PUBLISH, publish_payload_offset};
use super::rejection::{RejectedPeer, RejectionReason, Rejections};
use super::stream_handle::StreamHandle;
use connection_budget::{ConnectionBudget, Decision, Delay, DelayEnd};
use domain::ClientId;
use large_body::{LargeBody, NoPayload, WaitForMemory};
use service::ClientBudgets;

/// Maximum size of a packet that `mqtt5` may buffer. The read buffer of `mqtt5` has this size from
/// the beginning.
const MAX_SMALL_PACKET_BYTES: usize = 4096;
/// Number of bytes that are read from the network at once.
const READ_BYTES: usize = 4096;

/// Limits that the readers of all connections share.
pub(super) struct PacketLimits {
    pub max_packet_size: usize,
    /// Maximum time that a large packet waits for memory. Also the maximum time from then until the
    /// last byte, for each MiB of the packet.
    pub packet_timeout: Duration,
    pub large_packets: Arc<LargePackets>,
    pub client_budgets: Arc<ClientBudgets>,
    pub budget_reports: Arc<BudgetReports>,
    pub rejections: Arc<Rejections>,
}

/// The client whose packets are read.
pub(super) struct ConnectedClient {
    pub id: ClientId,
    pub peer: SocketAddr,
    /// The common name of the client certificate. `None` without TLS.
    pub certificate_name: Option<ClientId>,
    pub uses_mqtt_v5: bool,
}

/// Reads the packets of one connection.
pub(super) struct PacketReader {
    limits: Arc<PacketLimits>,
    client: ConnectedClient,
    budget: ConnectionBudget,
    handle: StreamHandle,
    /// Bytes from the network that are not processed yet.
    input: Vec<u8>,
    state: State,
}

/// What the reader does with the next bytes.
enum State {
    /// The fixed header of the next packet is not complete, or the packet waits for a decision.
    Header,
    /// The client is over its budget. Nothing is read.
    Delayed(Delay),
    /// The packet is passed on to `mqtt5`.
    PassOn { remaining: usize },
    /// A packet in memory is passed on to `mqtt5`: the CONNECT packet, a deferred heartbeat, or a large
    /// PUBLISH packet without its payload.
    PassOnPacket { packet: Vec<u8>, position: usize },
    /// A large PUBLISH packet waits for memory.
    WaitForMemory(Box<WaitForMemory>),
    /// The body of a large PUBLISH packet is read.
    LargeBody(Box<LargeBody>),
    /// The body of a large packet is read and dropped.
    Drop { packet_len: usize, remaining: usize },
}

impl PacketReader {
    /// Creates a reader that first passes on the CONNECT packet. `following_bytes` are the bytes that
    /// were received after that packet.
    pub fn new(
        limits: Arc<PacketLimits>,
        client: ConnectedClient,
        handle: StreamHandle,
        connect_packet: Vec<u8>,
        following_bytes: Vec<u8>,
    ) -> Self {
        let (budgets, reports) = (limits.client_budgets.clone(), limits.budget_reports.clone());
        Self {
            limits,
            budget: ConnectionBudget::new(budgets, reports, client.id.clone()),
            client,
            handle,
            input: following_bytes,
            state: State::PassOnPacket {
                packet: connect_packet,
                position: 0,
            },
        }
    }

    /// Reads bytes of the current packet from `stream` into `buffer`. Reads nothing at the end of
    /// the stream.
    pub fn poll_read(
        &mut self,
        stream: &mut impl PacketSource,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if matches!(self.state, State::Header) {
            // `mqtt5` has processed all earlier packets. A payload that is still there belongs to a
            // rejected packet.
            self.handle.discard_large_payload();
        }
        loop {
            if let State::Delayed(delay) = &mut self.state {
                match delay.poll(context, stream) {
                    Poll::Ready(DelayEnd::Elapsed) => self.state = State::Header,
                    Poll::Ready(DelayEnd::ClosedByPeer) => return Poll::Ready(Ok(())),
                    Poll::Pending => return Poll::Pending,
                }
            }
            if self.process_input(context, buffer)? {
                return Poll::Ready(Ok(()));
            }
            match self.state {
                State::Delayed(_) => continue,
                State::WaitForMemory(_) => return Poll::Pending,
                _ => {}
            }
            let mut chunk = [MaybeUninit::uninit(); READ_BYTES];
            let mut received = ReadBuf::uninit(&mut chunk);
            match Pin::new(&mut *stream).poll_read(context, &mut received) {
                Poll::Ready(result) => result?,
                Poll::Pending if self.poll_without_input(context)?.is_ready() => continue,
                Poll::Pending => return Poll::Pending,
            }
            if received.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.add_input(received.filled())?;
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
                State::Header => match self.next_state()? {
                    Some(state) => self.state = state,
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
                    }
                    self.remove_input(count);
                    return Ok(true);
                }
                State::PassOnPacket { packet, position } => {
                    let count = (packet.len() - *position).min(buffer.remaining());
                    buffer.put_slice(&packet[*position..*position + count]);
                    *position += count;
                    if *position == packet.len() {
                        self.state = State::Header;
                    }
                    return Ok(true);
                }
                State::WaitForMemory(wait) => match wait.poll(context, &self.limits) {
                    Poll::Ready(Some(large)) => {
                        self.state = State::LargeBody(Box::new(large));
                        let input = std::mem::take(&mut self.input);
                        self.add_input(&input)?;
                    }
                    Poll::Ready(None) => return Err(self.reject(RejectionReason::Overloaded)),
                    Poll::Pending => return Ok(false),
                },
                State::LargeBody(large) if large.is_complete() => self.finish_large_packet()?,
                State::Drop {
                    packet_len,
                    remaining: 0,
                } => {
                    let pause = self.budget.on_dropped(*packet_len);
                    self.state = State::after_drop(pause);
                }
                State::Delayed(_) | State::LargeBody(_) | State::Drop { .. } => {
                    return Ok(false);
                }
            }
        }
    }

    /// Decides what to do next: with a deferred heartbeat, or with the packet at the start of the
    /// input. Returns `None` if more input is needed.
    fn next_state(&mut self) -> io::Result<Option<State>> {
        if let Some(packet) = self.budget.take_due_heartbeat() {
            return Ok(Some(State::PassOnPacket {
                packet,
                position: 0,
            }));
        }
        let Some(header) = FixedHeader::parse(&self.input)? else {
            return Ok(None);
        };
        let packet_len = header.packet_len();
        let is_small = packet_len <= MAX_SMALL_PACKET_BYTES;
        if packet_len > self.limits.max_packet_size
            || (!is_small && header.packet_type() != PUBLISH)
        {
            return Err(self.reject(RejectionReason::PacketTooLarge));
        }
        self.handle.set_has_packet_after_connect();
        match self.budget.decide(&header) {
            Decision::Delay(delay) => Ok(Some(State::Delayed(Delay::new(delay)))),
            Decision::Drop if is_small => self.drop_small_packet(header),
            Decision::Drop => Ok(Some(self.start_dropping(header)?)),
            Decision::Pass if is_small => Ok(Some(State::PassOn {
                remaining: packet_len,
            })),
            Decision::Pass => {
                self.remove_input(header.header_len);
                let wait = WaitForMemory::new(header, &self.limits);
                Ok(Some(State::WaitForMemory(Box::new(wait))))
            }
        }
    }

    /// Drops a QoS 0 packet, or defers it if it is a heartbeat. Returns `None` if the packet is not
    /// complete.
    fn drop_small_packet(&mut self, header: FixedHeader) -> io::Result<Option<State>> {
        let packet_len = header.packet_len();
        let Some(packet) = self.input.get(..packet_len) else {
            return Ok(None);
        };
        let body = &packet[header.header_len..];
        let uses_mqtt_v5 = self.client.uses_mqtt_v5;
        let payload_offset = publish_payload_offset(header.first_byte, body, uses_mqtt_v5)?;
        let pause = if payload_offset == body.len() {
            let packet = packet.to_vec();
            self.budget.defer_heartbeat(packet)
        } else {
            self.budget.on_dropped(packet_len)
        };
        self.remove_input(packet_len);
        Ok(Some(State::after_drop(pause)))
    }

    fn start_dropping(&mut self, header: FixedHeader) -> io::Result<State> {
        self.remove_input(header.header_len);
        self.state = State::Drop {
            packet_len: header.packet_len(),
            remaining: header.body_len,
        };
        let input = std::mem::take(&mut self.input);
        self.add_input(&input)?;
        Ok(std::mem::replace(&mut self.state, State::Header))
    }

    /// Passes on a complete large PUBLISH packet without its payload.
    fn finish_large_packet(&mut self) -> io::Result<()> {
        let State::LargeBody(large) = std::mem::replace(&mut self.state, State::Header) else {
            return Ok(());
        };
        let finished = large.finish(self.client.uses_mqtt_v5);
        let (packet, payload) = finished.map_err(|NoPayload| self.reject_headers())?;
        self.state = State::PassOnPacket {
            packet,
            position: 0,
        };
        self.handle.set_large_payload(payload);
        Ok(())
    }

    /// Does what is due while the client sends nothing. Returns whether there is something to
    /// process.
    fn poll_without_input(&mut self, context: &mut Context<'_>) -> io::Result<Poll<()>> {
        match &mut self.state {
            State::LargeBody(large) => {
                if large.poll_is_too_slow(context, &self.limits.large_packets) {
                    return Err(self.reject(RejectionReason::PacketTimeout));
                }
                Ok(Poll::Pending)
            }
            State::Header => Ok(self.budget.poll_heartbeat_due(context)),
            _ => Ok(Poll::Pending),
        }
    }

    /// Adds bytes from the network. The body of a large packet does not pass through the input.
    fn add_input(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        match &mut self.state {
            State::LargeBody(large) => {
                let appended = large.append(bytes, self.client.uses_mqtt_v5);
                let count = appended.map_err(|NoPayload| self.reject_headers())?;
                bytes = &bytes[count..];
            }
            State::Drop { remaining, .. } => {
                let count = (*remaining).min(bytes.len());
                *remaining -= count;
                bytes = &bytes[count..];
            }
            _ => {}
        }
        self.input.extend_from_slice(bytes);
        Ok(())
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

    /// Rejects a large PUBLISH packet whose topic and properties are malformed or too large.
    fn reject_headers(&self) -> io::Error {
        self.reject(RejectionReason::PacketTooLarge)
    }

    fn reject(&self, reason: RejectionReason) -> io::Error {
        let peer = RejectedPeer {
            address: self.client.peer,
            certificate_name: self.client.certificate_name.as_ref(),
            client_id: Some(self.client.id.as_str()),
        };
        self.limits.rejections.report(reason, peer);
        io::Error::new(io::ErrorKind::InvalidData, reason.as_str())
    }
}

impl State {
    /// Returns the state after a dropped packet.
    fn after_drop(pause: Option<Duration>) -> Self {
        pause.map_or(Self::Header, |pause| Self::Delayed(Delay::new(pause)))
    }
}

#[cfg(test)]
mod tests;
