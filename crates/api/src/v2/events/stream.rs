//! One event stream. It creates a part only when the connection has sent the previous parts, so it
//! holds at most one part in memory.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::watch;
use tokio::time::Instant;

use domain::OrgId;
use service::LogThrottle;
use store::StoreError;

use super::filter::EventFilter;
use super::hub::{EventHub, Part, StreamPermit};
use super::rendered::{self, RenderedEvent, ResetReason};
use crate::metrics;
use crate::middleware::OpenStream;

/// Time after which a stream without events sends its position.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
/// Maximum size of the events that a slow reader has not received. It is also the maximum size of a
/// part, if no single event is larger.
const MAX_PENDING_BYTES: usize = 1024 * 1024;
/// A reader is slow if it has not received all events for this time, and more than
/// [`MAX_PENDING_BYTES`] are pending. A burst of events is shorter.
const SLOW_AFTER: Duration = Duration::from_secs(10);
/// Maximum number of events that are read from the database for one part.
const CHUNK_ROWS: u32 = 200;
/// Pause after a failed read.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The state of an event stream.
pub(super) struct EventStream {
    hub: EventHub,
    _permit: StreamPermit,
    _open_stream: OpenStream,
    org: OrgId,
    filter: EventFilter,
    /// The caller has received the matching events up to this position.
    position: u64,
    /// The first part. `None` after it is sent.
    opening: Option<Bytes>,
    /// Whether the stream has sent all events once. Before that, it sends old events.
    is_live: bool,
    /// Time since which the caller has not received all events.
    behind_since: Option<Instant>,
    buffer_end: watch::Receiver<u64>,
    sent_at: Instant,
}

/// Where a stream starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// After the newest event.
    Newest,
    /// After the event with this position. `None` if the id of the event is invalid.
    After(Option<u64>),
}

impl EventStream {
    /// Opens a stream.
    pub async fn open(
        hub: EventHub,
        permit: StreamPermit,
        open_stream: OpenStream,
        org: OrgId,
        filter: EventFilter,
        start: Start,
    ) -> Result<Self, StoreError> {
        let newest_position = hub.events().newest_position().await?;
        let (position, opening) = match start {
            Start::Newest => (newest_position, rendered::opening_frame(newest_position)),
            Start::After(Some(position)) if position <= newest_position => {
                (position, rendered::opening_frame(position))
            }
            Start::After(_) => {
                let reason = ResetReason::UnknownId;
                metrics::count_event_stream_reset(reason);
                let frame = rendered::reset_frame(newest_position, reason);
                (newest_position, frame)
            }
        };
        let buffer_end = hub.start_reading(newest_position);
        Ok(Self {
            hub,
            _permit: permit,
            _open_stream: open_stream,
            org,
            filter,
            position,
            opening: Some(opening),
            is_live: false,
            behind_since: None,
            buffer_end,
            sent_at: Instant::now(),
        })
    }

    /// Waits for the next part of the stream. Returns `None` when the process shuts down.
    pub async fn next(&mut self) -> Option<Bytes> {
        let tasks = self.hub.tasks().clone();
        tokio::select! {
            biased;
            () = tasks.cancelled() => None,
            part = self.next_part() => {
                self.sent_at = Instant::now();
                Some(part)
            }
        }
    }

    async fn next_part(&mut self) -> Bytes {
        if let Some(opening) = self.opening.take() {
            return opening;
        }
        loop {
            // A change after this line ends the wait below.
            self.buffer_end.borrow_and_update();
            if let Some(reset) = self.reset_if_slow() {
                return reset;
            }
            let part = self.hub.next_part(self.position, &self.org, &self.filter);
            let part = match part {
                Part::Events { .. } => part,
                Part::NotBuffered => match self.read_from_database().await {
                    Ok(Some(part)) => part,
                    Ok(None) => return self.reset(ResetReason::UnknownId),
                    Err(error) => {
                        log_read_error(&error);
                        tokio::time::sleep(RETRY_INTERVAL).await;
                        continue;
                    }
                },
            };
            let Part::Events {
                bytes,
                event_count,
                position,
                is_last,
            } = part
            else {
                continue;
            };
            self.position = position;
            if is_last {
                self.is_live = true;
                self.behind_since = None;
            } else {
                self.behind_since.get_or_insert_with(Instant::now);
            }
            if !bytes.is_empty() {
                metrics::count_events_sent(event_count);
                return bytes;
            }
            let is_heartbeat_due = if is_last {
                !self.wait_for_events().await
            } else {
                self.sent_at.elapsed() >= HEARTBEAT_INTERVAL
            };
            if is_heartbeat_due {
                return rendered::heartbeat_frame(self.position);
            }
        }
    }

    /// Waits until there are new events. Returns false if it is time for a heartbeat.
    async fn wait_for_events(&mut self) -> bool {
        // Starts the reader again if it has ended.
        self.hub.start_reading(self.position);
        tokio::select! {
            // The hub has the sender, so the channel is open.
            _ = self.buffer_end.changed() => true,
            () = tokio::time::sleep_until(self.sent_at + HEARTBEAT_INTERVAL) => false,
        }
    }

    /// Reads the next part from the database. Returns `None` if the next event is no longer stored.
    async fn read_from_database(&self) -> Result<Option<Part>, StoreError> {
        self.hub.start_reading(self.position);
        let end = self.hub.end();
        let events = self.hub.events();
        let next = events.read_events(Some(&self.org), self.position, CHUNK_ROWS);
        let next = next.await?;
        // The oldest position is read after the events, so no event was deleted before it was read.
        let oldest_position = events.oldest_position().await?.unwrap_or(end + 1);
        if oldest_position > self.position + 1 {
            return Ok(None);
        }
        // Without an event of the organization, all positions up to `end` are processed.
        let mut position = if next.is_empty() {
            end.max(self.position)
        } else {
            self.position
        };
        let mut bytes = BytesMut::new();
        let mut event_count = 0;
        for event in next.into_iter().map(RenderedEvent::from) {
            let is_selected = self.filter.matches(&event);
            let size = bytes.len() + event.frame.len();
            if is_selected && size > MAX_PENDING_BYTES && !bytes.is_empty() {
                break;
            }
            position = event.position;
            if is_selected {
                bytes.extend_from_slice(&event.frame);
                event_count += 1;
            }
        }
        Ok(Some(Part::Events {
            bytes: bytes.freeze(),
            event_count,
            position,
            is_last: false,
        }))
    }

    /// Continues after the newest event if the caller reads too slowly. A caller that receives old
    /// events after its start is not slow.
    fn reset_if_slow(&mut self) -> Option<Bytes> {
        let is_behind = self
            .behind_since
            .is_some_and(|since| since.elapsed() >= SLOW_AFTER);
        let is_slow = self.is_live
            && is_behind
            && self
                .hub
                .has_more_bytes(self.position, &self.org, &self.filter, MAX_PENDING_BYTES);
        is_slow.then(|| self.reset(ResetReason::SlowReader))
    }

    fn reset(&mut self, reason: ResetReason) -> Bytes {
        metrics::count_event_stream_reset(reason);
        self.position = self.hub.end().max(self.position);
        self.behind_since = None;
        rendered::reset_frame(self.position, reason)
    }
}

fn log_read_error(error: &StoreError) {
    static LOG_THROTTLE: LogThrottle = LogThrottle::new();
    if LOG_THROTTLE.should_log() {
        tracing::warn!(%error, "cannot read events for an event stream; retrying");
    }
}
