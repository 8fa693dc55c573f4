//! Limits how far the fleet may get before the next fault.
//!
//! An external broker serves the clients during every fault of the connector. Without a limit, the
//! fleet would send all its messages before the second fault.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// Counts the planned messages that were started and finished.
pub struct ProgressGate {
    started: AtomicU64,
    finished: watch::Sender<u64>,
    limit: watch::Sender<u64>,
}

impl ProgressGate {
    pub fn new() -> Self {
        Self {
            started: AtomicU64::new(0),
            finished: watch::Sender::new(0),
            limit: watch::Sender::new(0),
        }
    }

    /// Waits until the number of started messages is below the limit, then adds `messages` to it.
    pub async fn start(&self, messages: u64) {
        let mut limit = self.limit.subscribe();
        loop {
            let max_started = *limit.borrow_and_update();
            let add_messages = |started: u64| (started < max_started).then_some(started + messages);
            let added =
                self.started
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add_messages);
            if added.is_ok() {
                return;
            }
            let changed = limit.changed().await;
            changed.expect("the gate owns the sender");
        }
    }

    pub fn finish(&self, messages: u64) {
        self.finished.send_modify(|finished| *finished += messages);
    }

    /// Raises the limit. A lower limit has no effect.
    pub fn raise_limit(&self, limit: u64) {
        self.limit
            .send_modify(|current| *current = limit.max(*current));
    }

    /// Waits until this many messages are finished.
    pub async fn wait_for(&self, messages: u64) {
        let mut finished = self.finished.subscribe();
        let waited = finished.wait_for(|finished| *finished >= messages).await;
        waited.expect("the gate owns the sender");
    }
}
