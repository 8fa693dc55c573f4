//! Reads the event stream of one organization over HTTP, as a caller does: the reader reconnects after
//! each lost connection and resumes after the latest id that it has received.
//!
//! The reader also closes connections itself, and sometimes resumes from an older id. Only then may it
//! receive an event twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::random::Random;
use test_support::cluster::API_KEY;

/// Maximum time until the response starts.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum time between two parts of a stream. The connector sends its position every 15 seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);
const RECONNECT_DELAY: Duration = Duration::from_millis(200);
/// Maximum number of violations in the failure report.
const MAX_VIOLATIONS: usize = 20;

/// What a reader has received.
#[derive(Default)]
pub struct ReceivedEvents {
    /// The JSON objects of the events, by position.
    pub events: BTreeMap<u64, Value>,
    /// Latest id. All earlier events of the organization must be in `events`.
    pub position: u64,
    /// Violations of the rules of the stream.
    pub violations: Vec<String>,
    pub totals: StreamTotals,
}

/// Totals of the streams, for the summary.
#[derive(Debug, Default, Clone, Copy)]
pub struct StreamTotals {
    pub connections: u64,
    /// Events that were received again after a resume from an older id.
    pub repeated_events: u64,
    /// Events `reset` because the reader was too slow.
    pub slow_resets: u64,
}

/// A task that reads a stream. Dropping the value ends the task.
pub struct StreamReader {
    pub org_id: &'static str,
    pub received: Arc<Mutex<ReceivedEvents>>,
    task: JoinHandle<()>,
}

impl StreamReader {
    pub fn start(api_url: &str, org_id: &'static str, random: Random) -> Self {
        let received = Arc::<Mutex<ReceivedEvents>>::default();
        let connection = StreamConnection {
            url: format!("{api_url}/api/cloud-connector/v2/events"),
            org_id,
            received: received.clone(),
        };
        Self {
            org_id,
            received,
            task: tokio::spawn(connection.read_forever(random)),
        }
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct StreamConnection {
    url: String,
    org_id: &'static str,
    received: Arc<Mutex<ReceivedEvents>>,
}

impl StreamConnection {
    async fn read_forever(self, mut random: Random) {
        let http_client = test_support::http_client();
        loop {
            let position = self.received.lock().position;
            let start = if random.chance(30) {
                position.saturating_sub(random.between(1, 300))
            } else {
                position
            };
            // The reader closes the connection after this number of blocks.
            let max_blocks = random.between(200, 3000);
            // An error is expected: faults stop the process that serves the stream.
            let _ = self.read_once(&http_client, start, max_blocks).await;
            sleep(RECONNECT_DELAY).await;
        }
    }

    /// Reads one connection. Returns `None` when it has ended, or failed.
    async fn read_once(
        &self,
        http_client: &reqwest::Client,
        start: u64,
        max_blocks: u64,
    ) -> Option<()> {
        let request = http_client
            .get(&self.url)
            .header("x-rh-cloud-connector-client-id", "tester")
            .header("x-rh-cloud-connector-psk", API_KEY)
            .header("x-rh-cloud-connector-org-id", self.org_id)
            .header("last-event-id", start.to_string());
        let response = timeout(RESPONSE_TIMEOUT, request.send()).await.ok()?;
        let mut response = response.ok()?.error_for_status().ok()?;
        self.received.lock().totals.connections += 1;
        let (mut unread, mut last_id, mut block_count) = (Vec::new(), start, 0);
        loop {
            let chunk = timeout(IDLE_TIMEOUT, response.chunk()).await.ok()?;
            unread.extend_from_slice(&chunk.ok()??);
            let mut block_start = 0;
            while let Some(length) = unread[block_start..]
                .windows(2)
                .position(|it| it == b"\n\n")
            {
                let block = String::from_utf8_lossy(&unread[block_start..block_start + length]);
                self.received
                    .lock()
                    .add_block(&block, self.org_id, &mut last_id)?;
                block_start += length + 2;
                block_count += 1;
                if block_count >= max_blocks {
                    return None;
                }
            }
            unread.drain(..block_start);
        }
    }
}

impl ReceivedEvents {
    /// Processes a block of lines. `last_id` is the latest id of the connection. Returns `None` if the
    /// reader must reconnect.
    fn add_block(&mut self, block: &str, org_id: &str, last_id: &mut u64) -> Option<()> {
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
        let Some(id) = field("id: ").and_then(|id| id.parse::<u64>().ok()) else {
            return self.add_violation(format!("a block without an id: {block:?}"));
        };
        let Some(event_type) = field("event: ") else {
            if id < *last_id {
                return self.add_violation(format!("the id {id} follows the id {last_id}"));
            }
            *last_id = id;
            self.position = self.position.max(id);
            return Some(());
        };
        let data: Value = serde_json::from_str(field("data: ").unwrap_or_default()).ok()?;
        if event_type == "reset" {
            // A reader that is too slow on a busy machine can resume from its latest id, because the
            // events are stored.
            if data["reason"] != "slow_reader" {
                self.add_violation(format!("resumed after {last_id}, but received {data}"));
            }
            self.totals.slow_resets += 1;
            return None;
        }
        if id <= *last_id {
            return self.add_violation(format!("the event {id} follows the id {last_id}"));
        }
        *last_id = id;
        self.position = self.position.max(id);
        let id_text = id.to_string();
        if data["id"] != id_text || data["type"] != event_type || data["org_id"] != org_id {
            return self.add_violation(format!("wrong common fields in event {id}: {data}"));
        }
        match self.events.get(&id) {
            Some(earlier) if *earlier == data => self.totals.repeated_events += 1,
            Some(earlier) => {
                let violation = format!("two events have the id {id}: {earlier} and {data}");
                return self.add_violation(violation);
            }
            None => {
                self.events.insert(id, data);
            }
        }
        Some(())
    }

    /// Returns `None`, so that the reader reconnects.
    fn add_violation(&mut self, violation: String) -> Option<()> {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(violation);
        }
        None
    }
}
