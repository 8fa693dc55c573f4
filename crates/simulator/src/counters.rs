//! Counters of the whole fleet, for the progress display and the summary.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::histogram::Histogram;

#[derive(Default)]
pub(super) struct Counters {
    connected_clients: AtomicU64,
    peak_connected_clients: AtomicU64,
    successful_connects: AtomicU64,
    connect_failures: AtomicU64,
    connections_lost: AtomicU64,
    storm_drops: AtomicU64,
    clean_disconnects: AtomicU64,
    published_messages: AtomicU64,
    acknowledged_messages: AtomicU64,
    heartbeats: AtomicU64,
    received_messages: AtomicU64,
    rejected_subscriptions: AtomicU64,
    rejected_handshakes: AtomicU64,
    last_error: Mutex<Option<String>>,
    /// Durations from a connect attempt to its CONNACK.
    pub connect_times: Histogram,
    /// Durations from a PUBLISH to its PUBACK.
    pub publish_times: Histogram,
}

/// Values of all counters at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CounterSnapshot {
    pub connected_clients: u64,
    pub peak_connected_clients: u64,
    pub successful_connects: u64,
    pub connect_failures: u64,
    /// Connections closed by the broker or the network.
    pub connections_lost: u64,
    /// Connections dropped by `--storm`.
    pub storm_drops: u64,
    /// Clients that published an offline message, received the PUBACK and sent DISCONNECT.
    pub clean_disconnects: u64,
    /// Number of published messages with QoS 1.
    pub published_messages: u64,
    /// Number of messages with QoS 1 for which the broker sent a PUBACK.
    pub acknowledged_messages: u64,
    /// Number of published heartbeats, which have QoS 0.
    pub heartbeats: u64,
    pub received_messages: u64,
    pub rejected_subscriptions: u64,
    pub rejected_handshakes: u64,
}

impl Counters {
    pub fn record_connect(&self, elapsed: Duration) {
        self.connect_times.record(elapsed);
        increment(&self.successful_connects);
        let connected_clients = self.connected_clients.fetch_add(1, Ordering::Relaxed) + 1;
        self.peak_connected_clients
            .fetch_max(connected_clients, Ordering::Relaxed);
    }

    pub fn record_connect_failure(&self, error: &str) {
        increment(&self.connect_failures);
        *self.last_error.lock() = Some(error.to_owned());
    }

    /// Counts the end of an established connection, independent of the reason.
    pub fn record_connection_closed(&self) {
        self.connected_clients.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn record_connection_lost(&self, error: &str) {
        increment(&self.connections_lost);
        *self.last_error.lock() = Some(error.to_owned());
    }

    pub fn record_storm_drop(&self) {
        increment(&self.storm_drops);
    }

    pub fn record_clean_disconnect(&self) {
        increment(&self.clean_disconnects);
    }

    pub fn record_published_message(&self) {
        increment(&self.published_messages);
    }

    pub fn record_acknowledged_message(&self, elapsed: Duration) {
        self.publish_times.record(elapsed);
        increment(&self.acknowledged_messages);
    }

    pub fn record_heartbeat(&self) {
        increment(&self.heartbeats);
    }

    pub fn record_received_message(&self) {
        increment(&self.received_messages);
    }

    pub fn record_rejected_subscription(&self) {
        increment(&self.rejected_subscriptions);
    }

    pub fn record_rejected_handshake(&self) {
        increment(&self.rejected_handshakes);
    }

    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }

    pub fn snapshot(&self) -> CounterSnapshot {
        let load_counter = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CounterSnapshot {
            connected_clients: load_counter(&self.connected_clients),
            peak_connected_clients: load_counter(&self.peak_connected_clients),
            successful_connects: load_counter(&self.successful_connects),
            connect_failures: load_counter(&self.connect_failures),
            connections_lost: load_counter(&self.connections_lost),
            storm_drops: load_counter(&self.storm_drops),
            clean_disconnects: load_counter(&self.clean_disconnects),
            // `acknowledged_messages` is loaded before `published_messages`. In the opposite order,
            // a message that is published and acknowledged between the two loads could make
            // `acknowledged_messages` larger than `published_messages`.
            acknowledged_messages: load_counter(&self.acknowledged_messages),
            published_messages: load_counter(&self.published_messages),
            heartbeats: load_counter(&self.heartbeats),
            received_messages: load_counter(&self.received_messages),
            rejected_subscriptions: load_counter(&self.rejected_subscriptions),
            rejected_handshakes: load_counter(&self.rejected_handshakes),
        }
    }
}

fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
