//! Events in the format of the stream.

use bytes::Bytes;
use serde_json::{Value, json};

use domain::connection::normalize_dispatcher;
use domain::{ClientId, OrgId};
use store::StoredEvent;

/// Estimated memory of an event in addition to its frame.
const OVERHEAD_BYTES: usize = 256;

/// Why a caller must list the connections again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResetReason {
    /// The id from which the caller resumes is unknown, or a later event is no longer stored.
    UnknownId,
    /// The caller reads more slowly than its events occur.
    SlowReader,
}

impl ResetReason {
    pub const ALL: [Self; 2] = [Self::UnknownId, Self::SlowReader];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownId => "unknown_id",
            Self::SlowReader => "slow_reader",
        }
    }
}

/// An event as bytes, and the values that filters compare.
#[derive(Debug)]
pub(super) struct RenderedEvent {
    pub position: u64,
    pub org_id: OrgId,
    pub event_type: String,
    pub client_id: ClientId,
    /// Normalized names of the dispatchers after and before the event.
    pub dispatchers: Vec<String>,
    pub frame: Bytes,
}

impl RenderedEvent {
    /// Returns the approximate memory of the event.
    pub fn byte_count(&self) -> usize {
        OVERHEAD_BYTES + self.frame.len()
    }
}

impl From<StoredEvent> for RenderedEvent {
    fn from(event: StoredEvent) -> Self {
        let frame = format!(
            "id: {}\nevent: {}\ndata: {}\n\n",
            event.position,
            event.event_type,
            event.to_json()
        );
        let current = event.data.get("dispatchers");
        let previous = event.previous_dispatchers.as_ref();
        let objects = current.into_iter().chain(previous);
        let names = objects
            .filter_map(Value::as_object)
            .flat_map(|it| it.keys());
        let mut dispatchers: Vec<String> = names.map(|name| normalize_dispatcher(name)).collect();
        dispatchers.sort_unstable();
        dispatchers.dedup();
        Self {
            position: event.position,
            org_id: event.tenant.org_id,
            event_type: event.event_type,
            client_id: event.client_id,
            dispatchers,
            frame: frame.into(),
        }
    }
}

/// Returns the start of a stream: the position after which events follow, without an event.
pub(super) fn opening_frame(position: u64) -> Bytes {
    format!("id: {position}\n\n").into()
}

/// Returns the frame that keeps a quiet stream open, and that gives the caller the latest position.
pub(super) fn heartbeat_frame(position: u64) -> Bytes {
    format!(": no new events\nid: {position}\n\n").into()
}

/// Returns the frame after which the caller lists the connections again. The stream continues after
/// `position`.
pub(super) fn reset_frame(position: u64, reason: ResetReason) -> Bytes {
    let data = reset_data(position, reason);
    format!("id: {position}\nevent: reset\ndata: {data}\n\n").into()
}

/// Returns the data of a `reset` event.
pub(super) fn reset_data(position: u64, reason: ResetReason) -> Value {
    json!({"id": position.to_string(), "type": "reset", "reason": reason.as_str()})
}
