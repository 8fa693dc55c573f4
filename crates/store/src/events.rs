//! Events of organizations: the reading side. [`NewEvent`](crate::NewEvent) is the writing side.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};

use domain::{ClientId, OrgId, Tenant, Timestamp};

use crate::error::Result;

/// Maximum number returned by [`EventRepository::outbox_len`].
pub const MAX_OUTBOX_COUNT: u32 = 10_000;

/// An event that has a position.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredEvent {
    /// Position of the event among the events of all organizations. Positions have no gaps.
    pub position: u64,
    /// Time of the event.
    pub at: Timestamp,
    /// Type of the event, for example `connection.online`.
    pub event_type: String,
    /// Organization that receives the event.
    pub tenant: Tenant,
    /// Client id.
    pub client_id: ClientId,
    /// The fields that only this type of event has, as a JSON object.
    pub data: Value,
    /// The dispatchers before the event, if they differ from the dispatchers in `data`.
    pub previous_dispatchers: Option<Value>,
}

impl StoredEvent {
    /// Returns the JSON object that readers of events receive: the fields that all events have, and
    /// the fields of `data`. A field of `data` cannot replace a field that all events have.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut object = match &self.data {
            Value::Object(data) => data.clone(),
            _ => Map::new(),
        };
        let common_fields = [
            ("id", self.position.to_string()),
            ("type", self.event_type.clone()),
            ("time", self.at.to_string()),
            ("org_id", self.tenant.org_id.to_string()),
            ("account", self.tenant.account.clone()),
            ("client_id", self.client_id.to_string()),
        ];
        for (name, value) in common_fields {
            object.insert(name.to_owned(), value.into());
        }
        Value::Object(object)
    }
}

/// Gives positions to events, reads them and deletes them.
#[async_trait]
pub trait EventRepository: Send + Sync + 'static {
    /// Gives positions to at most `limit` committed events that have none, and returns their number.
    /// Returns 0 if another process does this at the moment. A database whose events have a position
    /// from the start does nothing and returns 0.
    async fn sequence_events(&self, limit: u32) -> Result<u64>;

    /// Returns the highest position that was ever given to an event. 0 if there was no event. All
    /// events up to this position are visible to readers, or are deleted.
    async fn newest_position(&self) -> Result<u64>;

    /// Returns the position of the oldest stored event. Returns `None` if no event is stored.
    async fn oldest_position(&self) -> Result<Option<u64>>;

    /// Reads events after a position, ordered by position: the events of an organization, or of all
    /// organizations. Returns at most `limit` events, and fewer if they are large. Returns no event
    /// only if there is none.
    async fn read_events(
        &self,
        org: Option<&OrgId>,
        after_position: u64,
        limit: u32,
    ) -> Result<Vec<StoredEvent>>;

    /// Deletes events before `time`, from the oldest position on. Considers only the oldest `limit`
    /// events up to `up_to_position`. Returns the number of deleted events.
    ///
    /// The deletion stops at the first event at or after `time`, so the stored positions never have
    /// a gap. An event after `now` was recorded while the clock was wrong: it is deleted with the
    /// events around it.
    async fn delete_events_before(
        &self,
        time: Timestamp,
        now: Timestamp,
        limit: u32,
        up_to_position: u64,
    ) -> Result<u64>;

    /// Acquires or renews the lease of the forwarder for the process `holder`. Returns the position
    /// of the latest forwarded event. Returns `None` if another process has the lease, or if the
    /// database has no forwarder. The clock of the database decides when a lease expires.
    async fn hold_forwarder(&self, holder: &str, duration: Duration) -> Result<Option<u64>>;

    /// Stores the position of the latest forwarded event. Returns false, and stores nothing, if
    /// `holder` does not have the lease.
    async fn store_forwarded_position(&self, holder: &str, position: u64) -> Result<bool>;

    /// Returns the position of the latest forwarded event. Returns `None` if the database has no
    /// forwarder.
    async fn forwarded_position(&self) -> Result<Option<u64>>;

    /// Counts committed events without a position, up to [`MAX_OUTBOX_COUNT`].
    async fn outbox_len(&self) -> Result<u64>;
}
