//! Detects two machines that use the same client id, for example because one is a copy of the other.
//!
//! Each of them takes over the session of the other one, which then reconnects. One machine can also
//! take over its own session: after a network failure, it may open a new connection before the broker
//! notices the end of the previous connection. This happens rarely, because the machine needs time
//! to detect the failure.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::live_connections::ReplacedConnection;
use super::metrics;
use super::recent_rejections::RecentRejections;
use domain::ClientId;
use service::LogLimiter;

/// Takeovers are repeated if there are [`MIN_REPEATED_TAKEOVERS`] within this time.
const WINDOW: Duration = Duration::from_mins(1);
const MIN_REPEATED_TAKEOVERS: usize = 3;
/// Maximum number of clients with a takeover within [`WINDOW`] that are observed.
const MAX_CLIENTS: usize = 10_000;
/// Minimum time between two log lines for one client.
const LOG_INTERVAL: Duration = Duration::from_mins(1);
const MAX_LOGGED_CLIENTS: usize = 100;
/// Reason of a repeated takeover among the recent rejections of the client.
const REASON: &str = "taken_over";

pub(super) struct TakeoverDetector {
    /// The times of the latest takeovers of each client, the oldest first.
    takeovers: Mutex<HashMap<ClientId, VecDeque<Instant>>>,
    log: LogLimiter<ClientId>,
    recent_rejections: Arc<RecentRejections>,
}

impl TakeoverDetector {
    pub fn new(recent_rejections: Arc<RecentRejections>) -> Self {
        Self {
            takeovers: Mutex::default(),
            log: LogLimiter::new(LOG_INTERVAL, MAX_LOGGED_CLIENTS),
            recent_rejections,
        }
    }

    /// Records that a connection from `peer` replaced a connection of the same client. Counts,
    /// stores and logs the takeover if it is one of several.
    pub fn record(&self, client: &ClientId, peer: SocketAddr, replaced: &ReplacedConnection) {
        // A client whose network loses the packets from the broker connects again and again without
        // receiving a CONNACK packet. It takes over its own connections.
        if !replaced.was_in_use || !self.add(client) {
            return;
        }
        metrics::count_repeated_takeover();
        self.recent_rejections
            .add(client.as_str(), REASON, replaced.peer);
        if let Some(suppressed_lines) = self.log.suppressed_if_due(client) {
            tracing::warn!(
                client_id = client.as_str(),
                %peer,
                previous_peer = %replaced.peer,
                suppressed_lines,
                "a client id is used by two connections that repeatedly disconnect each other; \
                 probably two machines have the same certificate or client id"
            );
        }
    }

    /// Adds a takeover. Returns whether the client had enough takeovers within [`WINDOW`].
    fn add(&self, client: &ClientId) -> bool {
        let now = Instant::now();
        let mut takeovers = self.takeovers.lock();
        if takeovers.len() >= MAX_CLIENTS && !takeovers.contains_key(client) {
            remove_old(&mut takeovers, now);
            if takeovers.len() >= MAX_CLIENTS {
                return false;
            }
        }
        let times = takeovers.entry(client.clone()).or_default();
        times.push_back(now);
        if times.len() > MIN_REPEATED_TAKEOVERS {
            times.pop_front();
        }
        times.len() == MIN_REPEATED_TAKEOVERS
            && times.front().is_some_and(|first| now - *first <= WINDOW)
    }

    /// Forgets old takeovers, to save memory.
    pub fn remove_old(&self) {
        let mut takeovers = self.takeovers.lock();
        remove_old(&mut takeovers, Instant::now());
        takeovers.shrink_to_fit();
    }
}

fn remove_old(takeovers: &mut HashMap<ClientId, VecDeque<Instant>>, now: Instant) {
    takeovers.retain(|_, times| times.back().is_some_and(|last| now - *last <= WINDOW));
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::SystemClock;

    fn client(id: &str) -> ClientId {
        ClientId::new(id).unwrap()
    }

    fn detector() -> TakeoverDetector {
        TakeoverDetector::new(Arc::new(RecentRejections::new(Arc::new(SystemClock))))
    }

    #[tokio::test(start_paused = true)]
    async fn third_takeover_within_a_minute_is_repeated() {
        let detector = detector();
        let mut results = Vec::new();
        for _ in 0..4 {
            results.push(detector.add(&client("a")));
            tokio::time::advance(WINDOW / 2).await;
        }
        assert_eq!(results, [false, false, true, true]);
        assert!(!detector.add(&client("b")));
    }

    #[tokio::test(start_paused = true)]
    async fn rare_takeovers_are_not_repeated_and_forgotten() {
        let detector = detector();
        for _ in 0..10 {
            assert!(!detector.add(&client("a")));
            tokio::time::advance(WINDOW * 2 / 3).await;
        }
        detector.remove_old();
        assert_eq!(detector.takeovers.lock().len(), 1);
        tokio::time::advance(WINDOW).await;
        detector.remove_old();
        assert!(detector.takeovers.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_were_never_used_do_not_count() {
        let detector = detector();
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        for was_in_use in [false, true] {
            let replaced = ReplacedConnection { peer, was_in_use };
            detector.record(&client("a"), peer, &replaced);
            let count = detector.takeovers.lock().len();
            assert_eq!(count, usize::from(was_in_use));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_takeovers_are_stored_with_the_peer_of_the_replaced_connection() {
        let detector = detector();
        let peers = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        for n in 0..4 {
            let replaced = ReplacedConnection {
                peer: peers[n % 2],
                was_in_use: true,
            };
            detector.record(&client("a"), peers[(n + 1) % 2], &replaced);
        }
        let stored = detector.recent_rejections.of_client("a");
        let stored: Vec<_> = stored
            .iter()
            .map(|entry| (entry.reason.as_str(), entry.peer.as_str()))
            .collect();
        let expected = [("taken_over", "127.0.0.1:2"), ("taken_over", "127.0.0.1:1")];
        assert_eq!(stored, expected);
    }
}
