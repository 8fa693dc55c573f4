//! Reads new events once for all streams of the process, and keeps the latest ones in memory.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::watch;

use domain::OrgId;
use service::{LogThrottle, TaskGroup};
use store::EventRepository;

use super::filter::EventFilter;
use super::rendered::RenderedEvent;
use crate::metrics;

/// Time between two reads of new events.
const READ_INTERVAL: Duration = Duration::from_millis(100);
/// Pause after a failed read.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of events that are read at once.
const CHUNK_ROWS: u32 = 1000;
/// Maximum memory of the events of all organizations.
const MAX_BUFFER_BYTES: usize = 16 * 1024 * 1024;
/// A part of a stream is complete when it has at least this size.
const PART_BYTES: usize = 64 * 1024;
/// Maximum number of streams of a process. Each stream uses one HTTP connection.
const MAX_STREAMS: usize = 2048;

/// The streams of a process, and the events that they send.
#[derive(Clone)]
pub(crate) struct EventHub {
    inner: Arc<HubInner>,
}

struct HubInner {
    events: Arc<dyn EventRepository>,
    /// Maximum number of streams of an owner.
    max_streams: usize,
    tasks: TaskGroup,
    state: Mutex<HubState>,
    /// The end of the buffer. Streams wait until it changes.
    end: watch::Sender<u64>,
}

/// A key and the organization that it acts for.
type StreamOwner = (String, OrgId);

#[derive(Default)]
struct HubState {
    stream_counts: HashMap<StreamOwner, usize>,
    stream_count: usize,
    /// `None` while no task reads events.
    buffer: Option<Buffer>,
    /// Number of started readers.
    reader_count: u64,
}

/// The events after `start` and up to `end`.
struct Buffer {
    /// The reader that fills the buffer.
    reader: u64,
    start: u64,
    end: u64,
    events: VecDeque<Arc<RenderedEvent>>,
    byte_count: usize,
}

/// Why a stream cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TooManyStreams {
    /// The owner has too many streams.
    OfOwner,
    /// The process has too many streams.
    OfProcess,
}

/// The next part of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Events that match the filter. There can be none.
    Events {
        bytes: Bytes,
        event_count: u64,
        /// The position up to which all events that match are in this part or in earlier parts.
        position: u64,
        /// Whether the buffer has no later event.
        is_last: bool,
    },
    /// The buffer does not contain the next event.
    NotBuffered,
}

impl EventHub {
    pub fn new(events: Arc<dyn EventRepository>, max_streams: usize, tasks: TaskGroup) -> Self {
        Self {
            inner: Arc::new(HubInner {
                events,
                max_streams,
                tasks,
                state: Mutex::default(),
                end: watch::Sender::new(0),
            }),
        }
    }

    pub(super) fn events(&self) -> &dyn EventRepository {
        &*self.inner.events
    }

    pub(super) fn tasks(&self) -> &TaskGroup {
        &self.inner.tasks
    }

    /// Counts a stream until the returned value is dropped.
    pub(super) fn add_stream(
        &self,
        key_name: &str,
        org: &OrgId,
    ) -> Result<StreamPermit, TooManyStreams> {
        let mut state = self.inner.state.lock();
        if state.stream_count >= MAX_STREAMS {
            return Err(TooManyStreams::OfProcess);
        }
        let owner = (key_name.to_owned(), org.clone());
        let owner_count = state.stream_counts.get(&owner).copied().unwrap_or(0);
        if owner_count >= self.inner.max_streams {
            return Err(TooManyStreams::OfOwner);
        }
        state.stream_counts.insert(owner.clone(), owner_count + 1);
        state.stream_count += 1;
        metrics::set_event_streams(state.stream_count);
        Ok(StreamPermit {
            hub: self.clone(),
            owner,
        })
    }

    /// Starts to read events after `position`, unless this process already reads events. Returns the
    /// end of the buffer, and notifies the receiver when it changes.
    pub(super) fn start_reading(&self, position: u64) -> watch::Receiver<u64> {
        let new_reader = {
            let mut state = self.inner.state.lock();
            let is_needed = state.buffer.is_none() && state.stream_count > 0;
            is_needed.then(|| {
                state.reader_count += 1;
                let number = state.reader_count;
                state.buffer = Some(Buffer::new(number, position));
                self.inner.end.send_replace(position);
                number
            })
        };
        if let Some(number) = new_reader {
            let hub = self.clone();
            let reader = Reader { hub, number };
            self.inner.tasks.spawn_item("event_reader", reader.run());
        }
        self.inner.end.subscribe()
    }

    /// Returns the end of the buffer: all events up to it are visible in the database.
    pub(super) fn end(&self) -> u64 {
        *self.inner.end.borrow()
    }

    /// Returns the next part of a stream whose caller has received the events up to `position`.
    pub(super) fn next_part(&self, position: u64, org: &OrgId, filter: &EventFilter) -> Part {
        let state = self.inner.state.lock();
        match &state.buffer {
            Some(buffer) => buffer.next_part(position, org, filter),
            None => Part::NotBuffered,
        }
    }

    /// Returns whether the frames of the events after `position` that match are larger than
    /// `max_bytes`.
    pub(super) fn has_more_bytes(
        &self,
        position: u64,
        org: &OrgId,
        filter: &EventFilter,
        max_bytes: usize,
    ) -> bool {
        let state = self.inner.state.lock();
        let Some(buffer) = &state.buffer else {
            return false;
        };
        let mut byte_count = 0;
        position < buffer.start
            || buffer.events_after(position).any(|event| {
                if event.org_id == *org && filter.matches(event) {
                    byte_count += event.frame.len();
                }
                byte_count > max_bytes
            })
    }
}

/// Permission for one stream.
pub(super) struct StreamPermit {
    hub: EventHub,
    owner: StreamOwner,
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut state = self.hub.inner.state.lock();
        state.stream_count -= 1;
        metrics::set_event_streams(state.stream_count);
        if let Some(count) = state.stream_counts.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                state.stream_counts.remove(&self.owner);
            }
        }
    }
}

/// The task that reads new events. When it ends or panics, its buffer is deleted, and a stream can
/// start another reader.
struct Reader {
    hub: EventHub,
    number: u64,
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.hub.inner.state.lock();
        if state
            .buffer
            .as_ref()
            .is_some_and(|it| it.reader == self.number)
        {
            state.buffer = None;
        }
    }
}

impl Reader {
    /// Reads new events while there are streams.
    async fn run(self) {
        static LOG_THROTTLE: LogThrottle = LogThrottle::new();
        let inner = &self.hub.inner;
        loop {
            let position = {
                let mut state = inner.state.lock();
                match &state.buffer {
                    Some(buffer) if state.stream_count > 0 => buffer.end,
                    _ => {
                        // Under the same lock, so that a new stream does not rely on a reader that
                        // is about to end.
                        state.buffer = None;
                        return;
                    }
                }
            };
            let read = inner.events.read_events(None, position, CHUNK_ROWS);
            let events = tokio::select! {
                events = read => events,
                () = inner.tasks.cancelled() => return,
            };
            let pause = match events {
                Ok(events) if events.is_empty() => READ_INTERVAL,
                Ok(events) => {
                    let rendered: Vec<_> = events.into_iter().map(RenderedEvent::from).collect();
                    if let Some(buffer) = &mut inner.state.lock().buffer {
                        for event in rendered {
                            buffer.push(event);
                        }
                        inner.end.send_replace(buffer.end);
                    }
                    Duration::ZERO
                }
                Err(error) => {
                    if LOG_THROTTLE.should_log() {
                        tracing::warn!(%error, "cannot read events for event streams; retrying");
                    }
                    RETRY_INTERVAL
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = inner.tasks.cancelled() => return,
            }
        }
    }
}

impl Buffer {
    fn new(reader: u64, position: u64) -> Self {
        Self {
            reader,
            start: position,
            end: position,
            events: VecDeque::new(),
            byte_count: 0,
        }
    }

    fn push(&mut self, event: RenderedEvent) {
        self.end = event.position;
        self.byte_count += event.byte_count();
        self.events.push_back(Arc::new(event));
        while self.byte_count > MAX_BUFFER_BYTES {
            let Some(oldest) = self.events.pop_front() else {
                return;
            };
            self.byte_count -= oldest.byte_count();
            self.start = oldest.position;
        }
    }

    fn events_after(&self, position: u64) -> impl Iterator<Item = &Arc<RenderedEvent>> {
        let first = self
            .events
            .partition_point(|event| event.position <= position);
        self.events.range(first..)
    }

    fn next_part(&self, mut position: u64, org: &OrgId, filter: &EventFilter) -> Part {
        if position < self.start {
            return Part::NotBuffered;
        }
        let mut bytes = BytesMut::new();
        let mut event_count = 0;
        for event in self.events_after(position) {
            position = event.position;
            if event.org_id == *org && filter.matches(event) {
                bytes.extend_from_slice(&event.frame);
                event_count += 1;
                if bytes.len() >= PART_BYTES {
                    break;
                }
            }
        }
        Part::Events {
            bytes: bytes.freeze(),
            event_count,
            // The position of a new stream can be after the end of the buffer.
            position,
            is_last: position >= self.end,
        }
    }
}
