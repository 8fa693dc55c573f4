//! What has happened to the whole fleet so far.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::histogram::Histogram;

#[derive(Default)]
pub(super) struct Counters {
    connected: AtomicU64,
    peak: AtomicU64,
    connects: AtomicU64,
    not_let_in: AtomicU64,
    lost: AtomicU64,
    cut: AtomicU64,
    left: AtomicU64,
    published: AtomicU64,
    acknowledged: AtomicU64,
    signs_of_life: AtomicU64,
    received: AtomicU64,
    subscriptions_refused: AtomicU64,
    handshakes_refused: AtomicU64,
    last_problem: Mutex<Option<String>>,
    pub connecting: Histogram,
    pub publishing: Histogram,
}

/// The numbers at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub connected: u64,
    pub peak: u64,
    pub connects: u64,
    pub not_let_in: u64,
    /// Connections that ended, and nobody here had wanted it.
    pub lost: u64,
    /// Connections that a storm dropped.
    pub cut: u64,
    pub left: u64,
    /// With QoS 1.
    pub published: u64,
    pub acknowledged: u64,
    pub signs_of_life: u64,
    pub received: u64,
    pub subscriptions_refused: u64,
    pub handshakes_refused: u64,
}

impl Counters {
    pub fn let_in(&self, after: Duration) {
        self.connecting.add(after);
        one(&self.connects);
        let connected = self.connected.fetch_add(1, Ordering::Relaxed) + 1;
        self.peak.fetch_max(connected, Ordering::Relaxed);
    }

    pub fn not_let_in(&self, why: &str) {
        one(&self.not_let_in);
        *self.last_problem.lock() = Some(why.to_owned());
    }

    /// A connection that was let in has ended.
    pub fn ended(&self) {
        self.connected.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn lost(&self, why: &str) {
        one(&self.lost);
        *self.last_problem.lock() = Some(why.to_owned());
    }

    pub fn cut(&self) {
        one(&self.cut);
    }

    /// A farewell was said and acknowledged.
    pub fn left(&self) {
        one(&self.left);
    }

    pub fn published(&self) {
        one(&self.published);
    }

    pub fn acknowledged(&self, after: Duration) {
        self.publishing.add(after);
        one(&self.acknowledged);
    }

    pub fn sign_of_life(&self) {
        one(&self.signs_of_life);
    }

    pub fn received(&self) {
        one(&self.received);
    }

    pub fn subscription_refused(&self) {
        one(&self.subscriptions_refused);
    }

    pub fn handshake_refused(&self) {
        one(&self.handshakes_refused);
    }

    pub fn last_problem(&self) -> Option<String> {
        self.last_problem.lock().clone()
    }

    pub fn counts(&self) -> Counts {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Counts {
            connected: read(&self.connected),
            peak: read(&self.peak),
            connects: read(&self.connects),
            not_let_in: read(&self.not_let_in),
            lost: read(&self.lost),
            cut: read(&self.cut),
            left: read(&self.left),
            // Read before what can only follow it, so that no more is acknowledged than published.
            acknowledged: read(&self.acknowledged),
            published: read(&self.published),
            signs_of_life: read(&self.signs_of_life),
            received: read(&self.received),
            subscriptions_refused: read(&self.subscriptions_refused),
            handshakes_refused: read(&self.handshakes_refused),
        }
    }
}

fn one(number: &AtomicU64) {
    number.fetch_add(1, Ordering::Relaxed);
}
