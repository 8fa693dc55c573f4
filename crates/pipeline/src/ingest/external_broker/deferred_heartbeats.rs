//! Heartbeats of clients that are over their budget. Of several heartbeats of a client within a window,
//! the latest is forwarded.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use domain::{ClientId, Timestamp};
use protocol::{ClientTopic, InboundMessage};

/// Time from the first deferred heartbeat of a client until its latest heartbeat is forwarded.
const WINDOW: Duration = Duration::from_secs(1);
/// Maximum number of deferred heartbeats. Each needs some hundred bytes.
const MAX_DEFERRED: usize = 65_536;

/// A heartbeat that is not forwarded yet.
#[derive(Debug, Clone)]
pub(super) struct DeferredHeartbeat {
    pub topic: ClientTopic,
    pub message: InboundMessage,
}

/// Result of [`DeferredHeartbeats::defer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeferOutcome {
    /// The heartbeat is stored. It is the first one in its window.
    Deferred,
    /// The heartbeat has replaced an earlier one of the same client.
    ReplacedEarlier,
    /// Too many heartbeats are stored. The heartbeat is dropped.
    Dropped,
}

/// The latest heartbeat of each client in the current window.
#[derive(Default)]
pub(super) struct DeferredHeartbeats {
    by_client: HashMap<ClientId, (Instant, DeferredHeartbeat)>,
    /// The end of each window, in order. An entry without a heartbeat of the same window in `by_client`
    /// is ignored.
    windows: VecDeque<(Instant, ClientId)>,
}

impl DeferredHeartbeats {
    /// Stores a heartbeat until the end of its client's window.
    pub fn defer(&mut self, heartbeat: DeferredHeartbeat) -> DeferOutcome {
        let client = heartbeat.topic.client.clone();
        if let Some((_, earlier)) = self.by_client.get_mut(&client) {
            *earlier = heartbeat;
            return DeferOutcome::ReplacedEarlier;
        }
        if self.by_client.len() >= MAX_DEFERRED {
            return DeferOutcome::Dropped;
        }
        let window_end = Instant::now() + WINDOW;
        self.windows.push_back((window_end, client.clone()));
        self.by_client.insert(client, (window_end, heartbeat));
        DeferOutcome::Deferred
    }

    /// Replaces the stored heartbeat of a client by a later one. Returns false if none is stored. Unlike
    /// [`defer`](Self::defer), this function allocates no memory.
    pub fn replace(&mut self, client: &str, received_at: impl FnOnce() -> Timestamp) -> bool {
        match self.by_client.get_mut(client) {
            Some((_, heartbeat)) => {
                heartbeat.message.received_at = received_at();
                true
            }
            None => false,
        }
    }

    /// Removes the heartbeat of a client whose next message is forwarded.
    pub fn take(&mut self, client: &str) -> Option<DeferredHeartbeat> {
        if self.by_client.is_empty() {
            return None;
        }
        let (_, heartbeat) = self.by_client.remove(client)?;
        Some(heartbeat)
    }

    /// Removes a heartbeat whose window has ended.
    pub fn take_due(&mut self) -> Option<DeferredHeartbeat> {
        let now = Instant::now();
        while let Some((window_end, client)) = self.windows.pop_front_if(|(end, _)| *end <= now) {
            if let Some((_, heartbeat)) = self
                .by_client
                .get(&client)
                .is_some_and(|(end, _)| *end == window_end)
                .then(|| self.by_client.remove(&client))
                .flatten()
            {
                return Some(heartbeat);
            }
        }
        None
    }

    /// Returns the end of the earliest window. `None` if no heartbeat is stored.
    pub fn next_window_end(&self) -> Option<Instant> {
        if self.by_client.is_empty() {
            return None;
        }
        self.windows.front().map(|(window_end, _)| *window_end)
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;
    use bytes::Bytes;

    fn heartbeat(client: &str, second: i64) -> DeferredHeartbeat {
        DeferredHeartbeat {
            topic: ClientTopic {
                prefix: "p".to_owned(),
                client: ClientId::new(client).unwrap(),
                channel: protocol::status::DATA_FROM_CLIENT,
            },
            message: InboundMessage {
                topic: format!("p/{client}/data/out"),
                payload: Bytes::new(),
                retained: false,
                is_operator_replay: false,
                is_last_will: None,
                is_takeover: false,
                received_at: Timestamp::from_second(second).unwrap(),
                ingest_stamp: None,
                truncated_from: None,
            },
        }
    }

    /// Returns the client and the receive time in seconds.
    fn summary(heartbeat: &DeferredHeartbeat) -> (String, i64) {
        let client = heartbeat.topic.client.as_str().to_owned();
        (client, heartbeat.message.received_at.as_second())
    }

    fn take_all_due(heartbeats: &mut DeferredHeartbeats) -> Vec<(String, i64)> {
        iter::from_fn(|| heartbeats.take_due().map(|heartbeat| summary(&heartbeat))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_latest_heartbeat_of_a_window_is_forwarded_at_its_end() {
        let mut heartbeats = DeferredHeartbeats::default();
        assert_eq!(heartbeats.defer(heartbeat("a", 1)), DeferOutcome::Deferred);
        tokio::time::advance(WINDOW / 2).await;
        heartbeats.defer(heartbeat("b", 2));
        let replaced = heartbeats.defer(heartbeat("a", 2));
        assert_eq!(replaced, DeferOutcome::ReplacedEarlier);
        assert!(heartbeats.replace("a", || Timestamp::from_second(3).unwrap()));
        assert!(!heartbeats.replace("c", || Timestamp::from_second(3).unwrap()));
        assert_eq!(take_all_due(&mut heartbeats), []);
        tokio::time::advance(WINDOW / 2).await;
        // A later heartbeat does not extend the window, so a client cannot delay its own heartbeat.
        assert_eq!(take_all_due(&mut heartbeats), [("a".to_owned(), 3)]);
        tokio::time::sleep_until(heartbeats.next_window_end().unwrap()).await;
        assert_eq!(take_all_due(&mut heartbeats), [("b".to_owned(), 2)]);
        assert_eq!(heartbeats.next_window_end(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_heartbeat_that_was_taken_before_the_end_of_its_window_is_not_forwarded_again() {
        let mut heartbeats = DeferredHeartbeats::default();
        heartbeats.defer(heartbeat("a", 1));
        let taken = heartbeats.take("a").map(|heartbeat| summary(&heartbeat));
        assert_eq!(taken, Some(("a".to_owned(), 1)));
        assert!(heartbeats.take("a").is_none());
        tokio::time::advance(WINDOW / 2).await;
        heartbeats.defer(heartbeat("a", 2));
        tokio::time::advance(WINDOW / 2).await;
        assert_eq!(take_all_due(&mut heartbeats), []);
        tokio::time::advance(WINDOW / 2).await;
        assert_eq!(take_all_due(&mut heartbeats), [("a".to_owned(), 2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn number_of_heartbeats_is_limited_and_a_stored_one_can_still_be_replaced() {
        let mut heartbeats = DeferredHeartbeats::default();
        for number in 0..MAX_DEFERRED {
            heartbeats.defer(heartbeat(&number.to_string(), 1));
        }
        assert_eq!(heartbeats.defer(heartbeat("x", 1)), DeferOutcome::Dropped);
        let replaced = heartbeats.defer(heartbeat("0", 2));
        assert_eq!(replaced, DeferOutcome::ReplacedEarlier);
        let taken = heartbeats.take("0").map(|heartbeat| summary(&heartbeat));
        assert_eq!(taken, Some(("0".to_owned(), 2)));
    }
}
