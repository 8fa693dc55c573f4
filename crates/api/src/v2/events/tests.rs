use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::{ClientId, OrgId, Tenant, Timestamp};
use parking_lot::Mutex;
use serde_json::{Value, json};
use service::TaskGroup;
use store::{EventRepository, StoreError, StoredEvent};
use tokio::time::timeout;

use super::filter::{EventFilter, parse_params};
use super::hub::{EventHub, TooManyStreams};
use super::stream::{EventStream, Start};
use crate::middleware::ConnectionStreams;

/// Events in memory.
#[derive(Default)]
struct MemoryEvents {
    events: Mutex<Vec<StoredEvent>>,
    newest_position: Mutex<u64>,
    is_unavailable: Mutex<bool>,
}

impl MemoryEvents {
    /// Adds an event. Its data has the given number of bytes in addition to other fields.
    fn add(&self, org_id: &str, client_id: &str, data_bytes: usize) {
        let mut newest_position = self.newest_position.lock();
        *newest_position += 1;
        self.events.lock().push(StoredEvent {
            position: *newest_position,
            at: Timestamp::UNIX_EPOCH,
            event_type: "connection.online".to_owned(),
            tenant: tenant(org_id),
            client_id: ClientId::new(client_id).unwrap(),
            data: json!({"dispatchers": {}, "text": "x".repeat(data_bytes)}),
            previous_dispatchers: None,
        });
    }

    fn delete_up_to(&self, position: u64) {
        self.events.lock().retain(|event| event.position > position);
    }

    fn check(&self) -> store::Result<()> {
        if *self.is_unavailable.lock() {
            return Err(StoreError::CorruptRow("unavailable".to_owned()));
        }
        Ok(())
    }
}

fn tenant(org_id: &str) -> Tenant {
    Tenant {
        org_id: OrgId::new(org_id).unwrap(),
        account: "42".to_owned(),
    }
}

#[async_trait]
impl EventRepository for MemoryEvents {
    async fn sequence_events(&self, _limit: u32) -> store::Result<u64> {
        Ok(0)
    }

    async fn newest_position(&self) -> store::Result<u64> {
        self.check()?;
        Ok(*self.newest_position.lock())
    }

    async fn oldest_position(&self) -> store::Result<Option<u64>> {
        self.check()?;
        Ok(self.events.lock().first().map(|event| event.position))
    }

    async fn read_events(
        &self,
        org: Option<&OrgId>,
        after_position: u64,
        limit: u32,
    ) -> store::Result<Vec<StoredEvent>> {
        self.check()?;
        let events = self.events.lock();
        let is_read = |event: &&StoredEvent| {
            event.position > after_position && org.is_none_or(|org| *org == event.tenant.org_id)
        };
        Ok(events
            .iter()
            .filter(is_read)
            .take(limit as usize)
            .cloned()
            .collect())
    }

    async fn delete_events_before(
        &self,
        _time: Timestamp,
        _now: Timestamp,
        _limit: u32,
        _up_to_position: u64,
    ) -> store::Result<u64> {
        Ok(0)
    }

    async fn hold_forwarder(&self, _holder: &str, _for: Duration) -> store::Result<Option<u64>> {
        Ok(None)
    }

    async fn store_forwarded_position(&self, _holder: &str, _position: u64) -> store::Result<bool> {
        Ok(false)
    }

    async fn forwarded_position(&self) -> store::Result<Option<u64>> {
        Ok(None)
    }

    async fn outbox_len(&self) -> store::Result<u64> {
        Ok(0)
    }
}

/// A hub with at most two streams for each owner.
fn hub() -> (Arc<MemoryEvents>, EventHub, TaskGroup) {
    let (events, tasks) = (Arc::new(MemoryEvents::default()), TaskGroup::new());
    let hub = EventHub::new(events.clone(), 2, tasks.clone());
    (events, hub, tasks)
}

async fn open(hub: &EventHub, start: Start, filter: EventFilter) -> Caller {
    let org = OrgId::new("a").unwrap();
    let permit = hub.add_stream("key", &org).unwrap();
    let connection = ConnectionStreams::default().open();
    let stream = EventStream::open(hub.clone(), permit, connection, org, filter, start);
    Caller {
        stream: stream.await.unwrap(),
        unread: String::new(),
    }
}

/// The caller of a stream.
struct Caller {
    stream: EventStream,
    unread: String,
}

impl Caller {
    /// Returns the next block of the stream: the text before an empty line.
    async fn next_block(&mut self) -> String {
        loop {
            if let Some((block, rest)) = self.unread.split_once("\n\n") {
                let block = block.to_owned();
                self.unread = rest.to_owned();
                return block;
            }
            let part = timeout(Duration::from_mins(1), self.stream.next()).await;
            let part = part
                .expect("the stream sends nothing")
                .expect("the stream ended");
            self.unread.push_str(std::str::from_utf8(&part).unwrap());
        }
    }

    /// Returns the id and the type of the next event, without blocks that have no event.
    async fn next_event(&mut self) -> (u64, String) {
        loop {
            let block = self.next_block().await;
            let line = |name: &str| {
                let mut lines = block.lines();
                lines.find_map(|line| line.strip_prefix(name).map(str::to_owned))
            };
            let Some(event_type) = line("event: ") else {
                continue;
            };
            let id: u64 = line("id: ").unwrap().parse().unwrap();
            let data: Value = serde_json::from_str(&line("data: ").unwrap()).unwrap();
            assert_eq!(data["id"], id.to_string());
            assert_eq!(data["type"], event_type);
            return (id, event_type);
        }
    }

    async fn next_ids(&mut self, count: usize) -> Vec<u64> {
        let mut ids = Vec::new();
        for _ in 0..count {
            let (id, event_type) = self.next_event().await;
            assert_eq!(event_type, "connection.online");
            ids.push(id);
        }
        ids
    }
}

#[tokio::test(start_paused = true)]
async fn stream_starts_with_the_newest_id_and_sends_the_later_events_of_the_organization() {
    let (events, hub, _tasks) = hub();
    events.add("a", "before", 0);
    let mut caller = open(&hub, Start::Newest, EventFilter::default()).await;
    assert_eq!(caller.next_block().await, "id: 1");
    events.add("a", "client-1", 0);
    events.add("b", "other", 0);
    events.add("a", "client-2", 0);
    let block = caller.next_block().await;
    let data = r#"{"account":"42","client_id":"client-1","dispatchers":{},"id":"2","org_id":"a","text":"","time":"1970-01-01T00:00:00Z","type":"connection.online"}"#;
    assert_eq!(
        block,
        format!("id: 2\nevent: connection.online\ndata: {data}")
    );
    assert_eq!(caller.next_ids(1).await, [4]);
}

#[tokio::test(start_paused = true)]
async fn quiet_filtered_stream_sends_its_position_every_15_seconds() {
    let (events, hub, _tasks) = hub();
    let params = [("client_id".to_owned(), "selected".to_owned())];
    let (filter, _) = parse_params(&params).unwrap();
    let mut caller = open(&hub, Start::Newest, filter).await;
    assert_eq!(caller.next_block().await, "id: 0");
    let started_at = tokio::time::Instant::now();
    for _ in 0..3 {
        events.add("a", "other", 0);
    }
    assert_eq!(caller.next_block().await, ": no new events\nid: 3");
    assert_eq!(started_at.elapsed().as_secs(), 15);
    events.add("a", "selected", 0);
    assert_eq!(caller.next_ids(1).await, [4]);
}

#[tokio::test(start_paused = true)]
async fn resumed_stream_has_no_gap_and_no_duplicate() {
    let (events, hub, _tasks) = hub();
    for number in 0..1000 {
        let org_id = if number % 3 == 0 { "b" } else { "a" };
        events.add(org_id, "client", 2000);
    }
    let mut live = open(&hub, Start::Newest, EventFilter::default()).await;
    assert_eq!(live.next_block().await, "id: 1000");
    let mut resumed = open(&hub, Start::After(Some(10)), EventFilter::default()).await;
    let expected: Vec<u64> = (11..=1000).filter(|id| (id - 1) % 3 != 0).collect();
    assert_eq!(resumed.next_ids(expected.len()).await, expected);
    events.add("a", "client", 0);
    assert_eq!(resumed.next_ids(1).await, [1001]);
    assert_eq!(live.next_ids(1).await, [1001]);
    drop(resumed);
    let mut resumed = open(&hub, Start::After(Some(1000)), EventFilter::default()).await;
    assert_eq!(resumed.next_ids(1).await, [1001]);
}

#[tokio::test(start_paused = true)]
async fn stream_after_a_deleted_or_unknown_event_starts_with_a_reset() {
    let (events, hub, _tasks) = hub();
    for _ in 0..5 {
        events.add("a", "client", 0);
    }
    events.delete_up_to(3);
    for start in [Some(6), None, Some(1), Some(2)] {
        let mut caller = open(&hub, Start::After(start), EventFilter::default()).await;
        let reset = (5, "reset".to_owned());
        assert_eq!(caller.next_event().await, reset, "{start:?}");
        drop(caller);
    }
    let mut caller = open(&hub, Start::After(Some(3)), EventFilter::default()).await;
    assert_eq!(caller.next_ids(2).await, [4, 5]);
    events.delete_up_to(5);
    let mut caller = open(&hub, Start::After(Some(5)), EventFilter::default()).await;
    events.add("a", "client", 0);
    assert_eq!(caller.next_ids(1).await, [6]);
    drop(caller);
    let mut caller = open(&hub, Start::After(Some(0)), EventFilter::default()).await;
    let event = caller.next_event().await;
    assert_eq!(event, (6, "reset".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn slow_reader_gets_a_reset_and_a_fast_reader_gets_a_burst_completely() {
    let (events, hub, _tasks) = hub();
    let mut slow = open(&hub, Start::Newest, EventFilter::default()).await;
    let mut fast = open(&hub, Start::Newest, EventFilter::default()).await;
    // The reader is started, and both streams have sent all events.
    events.add("a", "client", 0);
    assert_eq!(slow.next_ids(1).await, [1]);
    assert_eq!(fast.next_ids(1).await, [1]);
    for _ in 0..300 {
        events.add("a", "client", 10_000);
    }
    assert_eq!(fast.next_ids(300).await, (2..=301).collect::<Vec<_>>());
    assert_eq!(slow.next_ids(1).await, [2]);
    tokio::time::sleep(Duration::from_secs(11)).await;
    let mut last_id = 2;
    let reset_id = loop {
        let (id, event_type) = slow.next_event().await;
        if event_type == "reset" {
            break id;
        }
        assert_eq!(id, last_id + 1);
        last_id = id;
    };
    assert!(last_id < 20, "at most one part was in memory: {last_id}");
    assert_eq!(reset_id, 301);
    events.add("a", "client", 0);
    assert_eq!(slow.next_ids(1).await, [302]);
}

#[tokio::test(start_paused = true)]
async fn fast_reader_behind_the_buffer_reads_the_database() {
    let (events, hub, _tasks) = hub();
    let mut caller = open(&hub, Start::Newest, EventFilter::default()).await;
    let mut reader = open(&hub, Start::Newest, EventFilter::default()).await;
    events.add("a", "client", 0);
    assert_eq!(caller.next_ids(1).await, [1]);
    // More than the buffer of 16 MiB.
    for _ in 0..400 {
        events.add("a", "client", 50_000);
    }
    assert_eq!(reader.next_ids(401).await, (1..=401).collect::<Vec<_>>());
    assert_eq!(caller.next_ids(400).await, (2..=401).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn stream_continues_after_the_database_was_unavailable() {
    let (events, hub, _tasks) = hub();
    let mut caller = open(&hub, Start::Newest, EventFilter::default()).await;
    *events.is_unavailable.lock() = true;
    events.add("a", "client", 0);
    assert_eq!(caller.next_block().await, "id: 0");
    assert_eq!(caller.next_block().await, ": no new events\nid: 0");
    *events.is_unavailable.lock() = false;
    assert_eq!(caller.next_ids(1).await, [1]);
}

#[tokio::test(start_paused = true)]
async fn number_of_streams_is_limited_for_each_key_and_organization() {
    let (events, hub, _tasks) = hub();
    let first = open(&hub, Start::Newest, EventFilter::default()).await;
    let _second = open(&hub, Start::Newest, EventFilter::default()).await;
    let (a, b) = (OrgId::new("a").unwrap(), OrgId::new("b").unwrap());
    let third = hub.add_stream("key", &a);
    assert_eq!(third.err(), Some(TooManyStreams::OfOwner));
    assert!(hub.add_stream("key", &b).is_ok());
    assert!(hub.add_stream("other key", &a).is_ok());
    drop(first);
    let mut third = open(&hub, Start::Newest, EventFilter::default()).await;
    events.add("a", "client", 0);
    assert_eq!(third.next_ids(1).await, [1]);
}

#[tokio::test(start_paused = true)]
async fn streams_end_at_shutdown() {
    let (_events, hub, tasks) = hub();
    let mut caller = open(&hub, Start::Newest, EventFilter::default()).await;
    assert_eq!(caller.next_block().await, "id: 0");
    let (stopped, part) =
        tokio::join!(tasks.stop(Duration::from_millis(100)), caller.stream.next());
    assert!(stopped && part.is_none());
}
