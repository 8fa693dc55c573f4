//! Limits how many messages the fleet may send before the next fault.
//!
//! An external broker serves the clients during every fault of the connector. Without a limit, the
//! fleet would send all its messages before the second fault.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// Counts the messages that the fleet has started to send. A client waits before its next message
/// while the number of started messages has reached the limit.
pub struct FleetSendLimit {
    /// Number of messages that clients have started to send.
    started_message_count: AtomicU64,
    /// Number of messages that the broker has acknowledged.
    acknowledged_message_count: watch::Sender<u64>,
    /// Maximum number of started messages. A client waits while this number is reached.
    max_started_message_count: watch::Sender<u64>,
}

impl FleetSendLimit {
    pub fn new() -> Self {
        Self {
            started_message_count: AtomicU64::new(0),
            acknowledged_message_count: watch::Sender::new(0),
            max_started_message_count: watch::Sender::new(0),
        }
    }

    /// Waits until the number of started messages is below the limit. Then adds `message_count` to
    /// the number of started messages.
    pub async fn start_messages(&self, message_count: u64) {
        let mut limit = self.max_started_message_count.subscribe();
        loop {
            let max_started = *limit.borrow_and_update();
            let add_messages =
                |started: u64| (started < max_started).then_some(started + message_count);
            let update = self.started_message_count.fetch_update(
                Ordering::Relaxed,
                Ordering::Relaxed,
                add_messages,
            );
            if update.is_ok() {
                return;
            }
            let change = limit.changed().await;
            change.expect("the gate owns the sender");
        }
    }

    pub fn finish_messages(&self, message_count: u64) {
        self.acknowledged_message_count
            .send_modify(|finished| *finished += message_count);
    }

    /// Raises the maximum number of started messages to `limit`. Has no effect if `limit` is lower
    /// than the current maximum.
    pub fn raise_limit(&self, limit: u64) {
        self.max_started_message_count
            .send_modify(|current| *current = limit.max(*current));
    }

    /// Waits until the clients have started as many messages as the limit allows, and all these
    /// messages are finished. After that, no client sends a message until the limit is raised.
    pub async fn wait_until_idle(&self) {
        let mut finished = self.acknowledged_message_count.subscribe();
        let is_idle = |finished: &u64| {
            let started = self.started_message_count.load(Ordering::Relaxed);
            started == *finished && started >= *self.max_started_message_count.borrow()
        };
        let wait_result = finished.wait_for(is_idle).await;
        wait_result.expect("the gate owns the sender");
    }

    /// Waits until at least `message_count` messages are finished.
    pub async fn wait_until_finished(&self, message_count: u64) {
        let mut finished = self.acknowledged_message_count.subscribe();
        let wait_result = finished
            .wait_for(|finished| *finished >= message_count)
            .await;
        wait_result.expect("the gate owns the sender");
    }
}
