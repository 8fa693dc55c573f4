//! Counters over the whole fleet, for the progress display and the summary.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::histogram::Histogram;

#[derive(Default)]
pub(super) struct Counters {
    connected: AtomicU64,
    peak_connected: AtomicU64,
    connects: AtomicU64,
    connect_failures: AtomicU64,
    connections_lost: AtomicU64,
    storm_drops: AtomicU64,
    clean_disconnects: AtomicU64,
    published: AtomicU64,
    acknowledged: AtomicU64,
    heartbeats: AtomicU64,
    received: AtomicU64,
    subscriptions_rejected: AtomicU64,
    handshakes_rejected: AtomicU64,
    last_error: Mutex<Option<String>>,
    /// Time from the connect attempt to CONNACK.
    pub connect_times: Histogram,
    /// Time from PUBLISH to PUBACK.
    pub publish_times: Histogram,
}

/// Values of all counters at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CounterSnapshot {
    pub connected: u64,
    pub peak_connected: u64,
    pub connects: u64,
    pub connect_failures: u64,
    /// Connections closed by the broker or the network.
    pub connections_lost: u64,
    /// Connections dropped by `--storm`.
    pub storm_drops: u64,
    /// Clients that published their offline message, received its PUBACK and disconnected.
    pub clean_disconnects: u64,
    /// QoS 1 messages published.
    pub published: u64,
    /// QoS 1 messages for which the broker sent a PUBACK.
    pub acknowledged: u64,
    /// QoS 0 heartbeats published.
    pub heartbeats: u64,
    pub received: u64,
    pub subscriptions_rejected: u64,
    pub handshakes_rejected: u64,
}

impl Counters {
    pub fn connect_succeeded(&self, elapsed: Duration) {
        self.connect_times.record(elapsed);
        increment(&self.connects);
        let connected = self.connected.fetch_add(1, Ordering::Relaxed) + 1;
        self.peak_connected.fetch_max(connected, Ordering::Relaxed);
    }

    pub fn connect_failed(&self, error: &str) {
        increment(&self.connect_failures);
        *self.last_error.lock() = Some(error.to_owned());
    }

    /// Counts an established connection as closed, for whatever reason.
    pub fn connection_closed(&self) {
        self.connected.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn connection_lost(&self, error: &str) {
        increment(&self.connections_lost);
        *self.last_error.lock() = Some(error.to_owned());
    }

    pub fn storm_dropped(&self) {
        increment(&self.storm_drops);
    }

    pub fn disconnected_cleanly(&self) {
        increment(&self.clean_disconnects);
    }

    pub fn message_published(&self) {
        increment(&self.published);
    }

    pub fn message_acknowledged(&self, elapsed: Duration) {
        self.publish_times.record(elapsed);
        increment(&self.acknowledged);
    }

    pub fn heartbeat_published(&self) {
        increment(&self.heartbeats);
    }

    pub fn message_received(&self) {
        increment(&self.received);
    }

    pub fn subscription_rejected(&self) {
        increment(&self.subscriptions_rejected);
    }

    pub fn handshake_rejected(&self) {
        increment(&self.handshakes_rejected);
    }

    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }

    pub fn snapshot(&self) -> CounterSnapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CounterSnapshot {
            connected: read(&self.connected),
            peak_connected: read(&self.peak_connected),
            connects: read(&self.connects),
            connect_failures: read(&self.connect_failures),
            connections_lost: read(&self.connections_lost),
            storm_drops: read(&self.storm_drops),
            clean_disconnects: read(&self.clean_disconnects),
            // `acknowledged` is read before `published`: otherwise a message published between
            // the two reads could make `acknowledged` the larger one.
            acknowledged: read(&self.acknowledged),
            published: read(&self.published),
            heartbeats: read(&self.heartbeats),
            received: read(&self.received),
            subscriptions_rejected: read(&self.subscriptions_rejected),
            handshakes_rejected: read(&self.handshakes_rejected),
        }
    }
}

fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
