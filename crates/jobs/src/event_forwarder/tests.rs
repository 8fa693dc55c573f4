use std::collections::{BTreeMap, VecDeque};

use async_trait::async_trait;
use domain::{ClientId, OrgId, Tenant, Timestamp};
use parking_lot::Mutex;
use serde_json::json;

use super::*;

fn event(position: u64, client: &str) -> StoredEvent {
    StoredEvent {
        position,
        at: Timestamp::UNIX_EPOCH,
        event_type: "connection.online".to_owned(),
        tenant: Tenant {
            org_id: OrgId::new("1").unwrap(),
            account: String::new(),
        },
        client_id: ClientId::new(client).unwrap(),
        data: json!({}),
        previous_dispatchers: None,
    }
}

/// Events, and the lease of the forwarder, in memory.
pub(crate) struct MemoryEvents {
    events: Vec<StoredEvent>,
    pub forwarded: Mutex<u64>,
    /// Time and position of each deletion.
    pub deletions: Mutex<Vec<(Timestamp, u64)>>,
    holder: Mutex<Option<String>>,
    /// End of the lease of `holder`. `None` if it never ends.
    held_until: Mutex<Option<Instant>>,
}

impl MemoryEvents {
    pub fn new(clients: &[&str]) -> Arc<Self> {
        let events = (1..).zip(clients);
        Arc::new(Self {
            events: events
                .map(|(position, client)| event(position, client))
                .collect(),
            forwarded: Mutex::new(0),
            deletions: Mutex::default(),
            holder: Mutex::new(None),
            held_until: Mutex::new(None),
        })
    }
}

#[async_trait]
impl EventRepository for MemoryEvents {
    async fn sequence_events(&self, _limit: u32) -> store::Result<u64> {
        Ok(0)
    }

    async fn newest_position(&self) -> store::Result<u64> {
        Ok(self.events.len() as u64)
    }

    async fn oldest_position(&self) -> store::Result<Option<u64>> {
        Ok(self.events.first().map(|event| event.position))
    }

    async fn read_events(
        &self,
        _org: Option<&OrgId>,
        after_position: u64,
        limit: u32,
    ) -> store::Result<Vec<StoredEvent>> {
        let later = self
            .events
            .iter()
            .filter(|event| event.position > after_position);
        Ok(later.take(limit as usize).cloned().collect())
    }

    async fn delete_events_before(
        &self,
        time: Timestamp,
        _now: Timestamp,
        _limit: u32,
        up_to_position: u64,
    ) -> store::Result<u64> {
        self.deletions.lock().push((time, up_to_position));
        Ok(0)
    }

    async fn hold_forwarder(&self, holder: &str, duration: Duration) -> store::Result<Option<u64>> {
        let mut current = self.holder.lock();
        let mut held_until = self.held_until.lock();
        let is_held = held_until.is_none_or(|held_until| Instant::now() < held_until);
        if is_held && current.as_deref().is_some_and(|current| current != holder) {
            return Ok(None);
        }
        *held_until = Some(Instant::now() + duration);
        *current = (!duration.is_zero()).then(|| holder.to_owned());
        Ok(Some(*self.forwarded.lock()))
    }

    async fn store_forwarded_position(&self, holder: &str, position: u64) -> store::Result<bool> {
        if self.holder.lock().as_deref() != Some(holder) {
            return Ok(false);
        }
        *self.forwarded.lock() = position;
        Ok(true)
    }

    async fn forwarded_position(&self) -> store::Result<Option<u64>> {
        Ok(Some(*self.forwarded.lock()))
    }

    async fn outbox_len(&self) -> store::Result<u64> {
        Ok(0)
    }
}

/// Stores the delivered events. Rejects events with the next results in `failures`.
#[derive(Default)]
struct MemorySink {
    delivered: Mutex<Vec<(u64, String)>>,
    /// Positions that fail, each once.
    failures: Mutex<VecDeque<(u64, SendResult)>>,
    /// Time that each call needs.
    delay: Duration,
}

#[async_trait]
impl EventSink for MemorySink {
    async fn send(&self, events: &[OutgoingEvent]) -> Vec<SendResult> {
        tokio::time::sleep(self.delay).await;
        let send = |event: &OutgoingEvent| {
            let mut failures = self.failures.lock();
            if let Some((position, result)) = failures.front().copied()
                && position == event.position
            {
                failures.pop_front();
                return result;
            }
            let delivered = (event.position, event.client_id.to_string());
            self.delivered.lock().push(delivered);
            SendResult::Delivered
        };
        events.iter().map(send).collect()
    }
}

/// Runs the forwarder until all events are forwarded, or for a minute.
async fn forward(events: &Arc<MemoryEvents>, sink: &Arc<MemorySink>) {
    let forwarder = EventForwarder {
        events: events.clone(),
        sink: sink.clone(),
        holder: "one".to_owned(),
    };
    let tasks = TaskGroup::new();
    let running = tokio::spawn(forwarder.run(tasks.clone()));
    tokio::time::sleep(Duration::from_mins(1)).await;
    tasks.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_event_is_delivered_once_and_the_lease_ends_with_the_task() {
    let events = MemoryEvents::new(&["a", "b", "a", "c"]);
    let sink = Arc::new(MemorySink::default());
    forward(&events, &sink).await;
    let positions: Vec<u64> = sink.delivered.lock().iter().map(|(id, _)| *id).collect();
    assert_eq!(positions, [1, 2, 3, 4]);
    assert_eq!(*events.forwarded.lock(), 4);
    assert_eq!(*events.holder.lock(), None);
}

#[tokio::test(start_paused = true)]
async fn failed_events_are_sent_again_and_each_client_keeps_its_order() {
    let events = MemoryEvents::new(&["a", "b", "a", "b", "a"]);
    let sink = Arc::new(MemorySink::default());
    let failed = [1, 4].map(|position| (position, SendResult::Failed));
    *sink.failures.lock() = failed.into();
    forward(&events, &sink).await;
    assert_eq!(*events.forwarded.lock(), 5);
    let mut first_deliveries = BTreeMap::<String, Vec<u64>>::new();
    for (position, client) in sink.delivered.lock().iter() {
        let positions = first_deliveries.entry(client.clone()).or_default();
        if !positions.contains(position) {
            positions.push(*position);
        }
    }
    assert_eq!(first_deliveries["a"], [1, 3, 5]);
    assert_eq!(first_deliveries["b"], [2, 4]);
}

#[tokio::test(start_paused = true)]
async fn event_that_is_too_large_does_not_stop_the_forwarder() {
    let events = MemoryEvents::new(&["a", "b"]);
    let sink = Arc::new(MemorySink::default());
    *sink.failures.lock() = [(1, SendResult::TooLarge)].into();
    forward(&events, &sink).await;
    assert_eq!(*events.forwarded.lock(), 2);
    assert_eq!(*sink.delivered.lock(), [(2, "b".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_forwarded_while_another_process_has_the_lease() {
    let events = MemoryEvents::new(&["a"]);
    *events.holder.lock() = Some("two".to_owned());
    *events.held_until.lock() = None;
    let sink = Arc::new(MemorySink::default());
    forward(&events, &sink).await;
    assert!(sink.delivered.lock().is_empty());
    assert_eq!(events.holder.lock().as_deref(), Some("two"));
    *events.holder.lock() = None;
    forward(&events, &sink).await;
    assert_eq!(sink.delivered.lock().len(), 1);
}

/// A chunk of one client has as many groups as events.
#[tokio::test(start_paused = true)]
async fn lease_is_renewed_between_the_groups_of_a_chunk() {
    let events = MemoryEvents::new(&["a"; 100]);
    let sink = Arc::new(MemorySink {
        delay: Duration::from_millis(500),
        ..MemorySink::default()
    });
    let forwarder = EventForwarder {
        events: events.clone(),
        sink: sink.clone(),
        holder: "one".to_owned(),
    };
    let tasks = TaskGroup::new();
    let running = tokio::spawn(forwarder.run(tasks.clone()));
    for _ in 0..45 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let other = events.hold_forwarder("two", LEASE).await;
        assert_eq!(other.unwrap(), None);
    }
    assert!(*events.forwarded.lock() > 80);
    tasks.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn chunk_ends_when_the_lease_is_lost() {
    let events = MemoryEvents::new(&["a"; 100]);
    let sink = Arc::new(MemorySink {
        delay: Duration::from_secs(2),
        ..MemorySink::default()
    });
    let forwarder = EventForwarder {
        events: events.clone(),
        sink: sink.clone(),
        holder: "one".to_owned(),
    };
    let mut position = 0;
    let mut renewed_at = Instant::now();
    *events.holder.lock() = Some("two".to_owned());
    *events.held_until.lock() = None;
    tokio::time::sleep(RENEW_INTERVAL).await;
    let next = forwarder
        .forward_chunk(&mut position, &mut renewed_at)
        .await;
    assert_eq!(next.unwrap(), Next::LeaseLost);
    assert!(sink.delivered.lock().is_empty());
}
