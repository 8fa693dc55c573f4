//! Forwards events to Kafka, each at least once, and the events of each client in their order.
//!
//! One process at a time has the lease of the forwarder. It stores its position after the events are
//! delivered, so after a failure it can send events again, with the same ids.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use integrations::events::{EventSink, OutgoingEvent, SendResult};
use service::{LogThrottle, TaskGroup};
use store::{EventRepository, StoreError, StoredEvent};

use crate::metrics;

/// Duration of the lease. It is longer than the delivery of a group of events can take.
const LEASE: Duration = Duration::from_secs(30);
/// Time after which the lease is renewed, and between two attempts to get it.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);
/// Pause after all events are forwarded.
const IDLE_PAUSE: Duration = Duration::from_millis(250);
/// Pause after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// Maximum number of events that are read at once.
const CHUNK_ROWS: u32 = 500;

static LOG_THROTTLE: LogThrottle = LogThrottle::new();

/// Forwards events to a sink.
pub struct EventForwarder {
    /// The events, and the position of the forwarder.
    pub events: Arc<dyn EventRepository>,
    /// Destination of the events.
    pub sink: Arc<dyn EventSink>,
    /// Name of this process in the lease.
    pub holder: String,
}

/// What to do after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// There can be more events.
    Continue,
    /// All events are forwarded.
    Idle,
    /// Events were not delivered.
    Retry,
    /// Another process has the lease.
    LeaseLost,
}

impl EventForwarder {
    /// Forwards events until `tasks` is cancelled, while this process has the lease.
    pub async fn run(self, tasks: TaskGroup) {
        tokio::select! {
            () = self.forward_forever() => {}
            () = tasks.cancelled() => {}
        }
        // Another process can continue at once. If the lease is not ended, it expires.
        if let Err(error) = self
            .events
            .hold_forwarder(&self.holder, Duration::ZERO)
            .await
        {
            tracing::debug!(%error, "cannot end the lease of the event forwarder");
        }
    }

    async fn forward_forever(&self) {
        loop {
            match self.events.hold_forwarder(&self.holder, LEASE).await {
                Ok(Some(position)) => self.forward_from(position).await,
                Ok(None) => {}
                Err(error) => log_store_error(&error),
            }
            tokio::time::sleep(RENEW_INTERVAL).await;
        }
    }

    /// Forwards events after `position` while this process has the lease.
    async fn forward_from(&self, mut position: u64) {
        let mut renewed_at = Instant::now();
        loop {
            let next = self.forward_chunk(&mut position, &mut renewed_at).await;
            let next = next.unwrap_or_else(|error| {
                log_store_error(&error);
                Next::Retry
            });
            match next {
                Next::Continue => {}
                Next::Idle => tokio::time::sleep(IDLE_PAUSE).await,
                Next::Retry => tokio::time::sleep(RETRY_PAUSE).await,
                Next::LeaseLost => return,
            }
        }
    }

    /// Renews the lease if it is due. Returns whether this process still has the lease, and no other
    /// process has forwarded events after `position`.
    async fn renew_lease(
        &self,
        position: u64,
        renewed_at: &mut Instant,
    ) -> Result<bool, StoreError> {
        if renewed_at.elapsed() < RENEW_INTERVAL {
            return Ok(true);
        }
        // The lease starts at the latest when the database responds, and so ends after this time.
        let started_at = Instant::now();
        let stored_position = self.events.hold_forwarder(&self.holder, LEASE).await?;
        *renewed_at = started_at;
        Ok(stored_position == Some(position))
    }

    /// Forwards the next events, and stores the position after each group of delivered events.
    ///
    /// Each group is sent only with a lease that was renewed recently: a chunk can have as many groups as
    /// events, each with a round trip to Kafka. If another process got the lease meanwhile, this process
    /// would send an old event of a client after a newer one.
    async fn forward_chunk(
        &self,
        position: &mut u64,
        renewed_at: &mut Instant,
    ) -> Result<Next, StoreError> {
        if !self.renew_lease(*position, renewed_at).await? {
            return Ok(Next::LeaseLost);
        }
        let newest_position = self.events.newest_position().await?;
        metrics::set_event_forward_lag(newest_position.saturating_sub(*position));
        let events = self.events.read_events(None, *position, CHUNK_ROWS).await?;
        if events.is_empty() {
            return Ok(Next::Idle);
        }
        for group in groups_of_different_clients(&events) {
            if !self.renew_lease(*position, renewed_at).await? {
                return Ok(Next::LeaseLost);
            }
            let outgoing: Vec<OutgoingEvent> = group.iter().map(outgoing_event).collect();
            let results = self.sink.send(&outgoing).await;
            let (delivered_up_to, is_complete) = last_delivered(group, &results);
            if let Some(delivered_up_to) = delivered_up_to {
                let stored = self
                    .events
                    .store_forwarded_position(&self.holder, delivered_up_to);
                if !stored.await? {
                    return Ok(Next::LeaseLost);
                }
                *position = delivered_up_to;
            }
            if !is_complete {
                if LOG_THROTTLE.should_log() {
                    tracing::warn!(
                        position = *position,
                        "Kafka does not accept events; they are sent again. Check that Kafka is \
                         running, and that the topic in events.kafka_topic exists (create it with \
                         `cloud-connector migrate --topics`)"
                    );
                }
                return Ok(Next::Retry);
            }
        }
        metrics::set_event_forward_lag(newest_position.saturating_sub(*position));
        Ok(Next::Continue)
    }
}

/// Splits the events into groups without two events of one client. The next group is sent only after
/// the previous group is delivered. Otherwise a failed event of a client could arrive after a later
/// event of the client.
fn groups_of_different_clients(events: &[StoredEvent]) -> Vec<&[StoredEvent]> {
    let mut groups = Vec::new();
    let mut clients = HashSet::new();
    let mut start = 0;
    for (index, event) in events.iter().enumerate() {
        if !clients.insert(&event.client_id) {
            groups.push(&events[start..index]);
            start = index;
            clients.clear();
            clients.insert(&event.client_id);
        }
    }
    groups.push(&events[start..]);
    groups
}

/// Returns the position of the last event before the first failed event, and whether no event failed.
fn last_delivered(group: &[StoredEvent], results: &[SendResult]) -> (Option<u64>, bool) {
    let mut delivered_up_to = None;
    for (event, result) in group.iter().zip(results) {
        metrics::count_forwarded_event(*result);
        if *result == SendResult::TooLarge {
            tracing::error!(
                position = event.position, client_id = %event.client_id,
                "event not forwarded: it is too large for the topic; increase max.message.bytes of \
                 the topic"
            );
        }
    }
    for (event, result) in group.iter().zip(results) {
        if *result == SendResult::Failed {
            return (delivered_up_to, false);
        }
        delivered_up_to = Some(event.position);
    }
    (delivered_up_to, true)
}

fn outgoing_event(event: &StoredEvent) -> OutgoingEvent {
    OutgoingEvent {
        position: event.position,
        at: event.at,
        event_type: event.event_type.clone(),
        client_id: event.client_id.clone(),
        json: event.to_json().to_string().into_bytes(),
    }
}

fn log_store_error(error: &StoreError) {
    if LOG_THROTTLE.should_log() {
        tracing::warn!(%error, "cannot forward events: the database is unavailable; retrying");
    }
}

#[cfg(test)]
pub(crate) mod tests;
