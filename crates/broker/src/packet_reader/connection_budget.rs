//! Applies the budget of a client to the packets of its connection.
//!
//! A packet is passed on while the client is within its budget, and is then charged. A client that
//! is over its budget waits until the budget has refilled. Waiting charges nothing, so a client that
//! gives up and reconnects does not have to wait longer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::budget_reports::BudgetReports;
use crate::client_stream::PacketSource;
use crate::packet_format::{FixedHeader, PINGREQ, PUBLISH, SUBSCRIBE, UNSUBSCRIBE};
use domain::ClientId;
use service::ClientBudgets;

/// Rate at which the packets of a client that is over its budget are read and dropped, in bytes per
/// second. Without this limit, a client could use a large part of the processor time.
const MAX_DROP_RATE: f64 = 3_000_000.0;
/// Number of bytes that are dropped between two pauses.
const DROPPED_BYTES_PER_PAUSE: usize = 32 * 1024;
/// Number of bytes that a dropped packet counts in addition to its length.
const PACKET_OVERHEAD_BYTES: usize = 256;
/// Interval at which a delayed connection is checked for its end.
const CLOSE_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// What the reader does with a packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Pass,
    Delay(Duration),
    Drop,
}

pub(super) struct ConnectionBudget {
    budgets: Arc<ClientBudgets>,
    reports: Arc<BudgetReports>,
    client: ClientId,
    /// Whether the current packet was delayed. It is reported once.
    is_delayed: bool,
    /// Bytes that were dropped since the last pause.
    dropped_bytes: usize,
    deferred_heartbeat: Option<DeferredHeartbeat>,
}

/// The latest heartbeat that the client sent while it was over its budget.
struct DeferredHeartbeat {
    packet: Vec<u8>,
    /// Fires when the client is within its budget. `None` until the reader is idle.
    timer: Option<Pin<Box<Sleep>>>,
}

impl ConnectionBudget {
    pub fn new(budgets: Arc<ClientBudgets>, reports: Arc<BudgetReports>, client: ClientId) -> Self {
        Self {
            budgets,
            reports,
            client,
            is_delayed: false,
            dropped_bytes: 0,
            deferred_heartbeat: None,
        }
    }

    /// Decides about a packet, and charges a packet that is passed on.
    pub fn decide(&mut self, header: &FixedHeader) -> Decision {
        let is_publish = header.packet_type() == PUBLISH;
        // Acknowledgements are part of an exchange that the broker limits, and DISCONNECT is the
        // last packet.
        let is_charged =
            is_publish || matches!(header.packet_type(), SUBSCRIBE | UNSUBSCRIBE | PINGREQ);
        if !is_charged {
            return Decision::Pass;
        }
        let delay = self.budgets.time_until_within(&self.client);
        if delay.is_zero() {
            self.is_delayed = false;
            self.budgets.charge(&self.client, header.body_len);
            return Decision::Pass;
        }
        if is_publish && header.qos() == 0 {
            return Decision::Drop;
        }
        if !self.is_delayed {
            self.is_delayed = true;
            self.reports.report_delayed(&self.client);
        }
        Decision::Delay(delay)
    }

    /// Records that a packet was dropped. Returns the time for which the reader must pause.
    pub fn on_dropped(&mut self, packet_len: usize) -> Option<Duration> {
        self.reports.report_dropped(&self.client);
        self.dropped_bytes += packet_len + PACKET_OVERHEAD_BYTES;
        if self.dropped_bytes < DROPPED_BYTES_PER_PAUSE {
            return None;
        }
        let dropped_bytes = std::mem::take(&mut self.dropped_bytes);
        Some(Duration::from_secs_f64(
            dropped_bytes as f64 / MAX_DROP_RATE,
        ))
    }

    /// Keeps a heartbeat until the client is within its budget. An earlier heartbeat is dropped.
    pub fn defer_heartbeat(&mut self, packet: Vec<u8>) -> Option<Duration> {
        let packet_len = packet.len();
        let deferred = DeferredHeartbeat {
            packet,
            timer: None,
        };
        if self.deferred_heartbeat.replace(deferred).is_some() {
            return self.on_dropped(packet_len);
        }
        self.reports.report_delayed(&self.client);
        None
    }

    /// Returns the deferred heartbeat if the client is within its budget, and charges it. The reader
    /// passes it on before any later packet of the connection.
    pub fn take_due_heartbeat(&mut self) -> Option<Vec<u8>> {
        self.deferred_heartbeat.as_ref()?;
        if !self.budgets.is_within(&self.client) {
            return None;
        }
        let packet = self.deferred_heartbeat.take()?.packet;
        self.budgets.charge(&self.client, packet.len());
        Some(packet)
    }

    /// Waits until the deferred heartbeat is due, while the client sends nothing. Never completes if
    /// there is no deferred heartbeat.
    pub fn poll_heartbeat_due(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(deferred) = &mut self.deferred_heartbeat else {
            return Poll::Pending;
        };
        loop {
            let delay = self.budgets.time_until_within(&self.client);
            if delay.is_zero() {
                return Poll::Ready(());
            }
            let timer = deferred.timer.insert(Box::pin(tokio::time::sleep(delay)));
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

/// A pause in which the reader does not read. Other connections continue.
pub(super) struct Delay {
    end: Instant,
    next_check: Pin<Box<Sleep>>,
}

/// Why a delay has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DelayEnd {
    Elapsed,
    ClosedByPeer,
}

impl Delay {
    pub fn new(duration: Duration) -> Self {
        let now = Instant::now();
        // The end is checked again after each interval, so it may be far in the future.
        let end = now
            .checked_add(duration)
            .unwrap_or(now + CLOSE_CHECK_INTERVAL);
        Self {
            end,
            next_check: Box::pin(tokio::time::sleep_until(
                end.min(now + CLOSE_CHECK_INTERVAL),
            )),
        }
    }

    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        stream: &impl PacketSource,
    ) -> Poll<DelayEnd> {
        while self.next_check.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            if now >= self.end {
                return Poll::Ready(DelayEnd::Elapsed);
            }
            if stream.is_closed_by_peer() {
                return Poll::Ready(DelayEnd::ClosedByPeer);
            }
            let next_check = self.end.min(now + CLOSE_CHECK_INTERVAL);
            self.next_check.as_mut().reset(next_check);
        }
        Poll::Pending
    }
}
