//! How far the fleet is, and how far it may go. Clients of an outside broker are served whatever
//! happens to us: without a bound they would be done before the second fault.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// Counts messages of the plan.
pub struct Gate {
    begun: AtomicU64,
    done: watch::Sender<u64>,
    bound: watch::Sender<u64>,
}

impl Gate {
    pub fn new() -> Self {
        Self {
            begun: AtomicU64::new(0),
            done: watch::Sender::new(0),
            bound: watch::Sender::new(0),
        }
    }

    /// Waits until so many more messages may be said.
    pub async fn enter(&self, messages: u64) {
        let mut bound = self.bound.subscribe();
        loop {
            let most = *bound.borrow_and_update();
            let may = |begun: u64| (begun < most).then_some(begun + messages);
            let tried = self
                .begun
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, may);
            if tried.is_ok() {
                return;
            }
            let changed = bound.changed().await;
            changed.expect("the gate is there");
        }
    }

    pub fn leave(&self, messages: u64) {
        self.done.send_modify(|done| *done += messages);
    }

    /// Lets the fleet go so far.
    pub fn open_to(&self, bound: u64) {
        self.bound.send_modify(|most| *most = bound.max(*most));
    }

    /// Waits until so many messages have been acknowledged.
    pub async fn reached(&self, messages: u64) {
        let mut done = self.done.subscribe();
        let waited = done.wait_for(|done| *done >= messages).await;
        waited.expect("the gate is there");
    }
}
