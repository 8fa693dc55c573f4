//! Presence: the stored state of clients, and the batches that change it. Only the recorder writes
//! batches.

use std::collections::HashMap;

use async_trait::async_trait;

use domain::{ClientId, MessageId, Tenant, Timestamp};

use crate::batch::{PresenceBatch, PresenceColumns};
use crate::error::Result;
use crate::partitions::{PartitionLease, QueueTopic, ReceivedAt};

/// The database rows of a client before a batch is applied.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredState {
    /// The client's row in `connections`, if the client is connected.
    pub connection: Option<StoredConnection>,
    /// The client's row in `disconnected_clients`, if the client has disconnected.
    pub disconnect: Option<StoredDisconnect>,
    /// Number of the latest history row, if no row of the client counts its transitions: the Go
    /// implementation deletes rows without their history, and inserts rows without a count. Otherwise 0.
    pub latest_transition: u64,
}

impl StoredState {
    /// Returns whether a row of the client counts its transitions.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        let connection = self.connection.as_ref().map(|row| &row.presence);
        let disconnect = self.disconnect.as_ref().map(|row| &row.presence);
        let mut rows = connection.into_iter().chain(disconnect);
        rows.any(|presence| presence.transition_count > 0)
    }
}

/// The columns of `connections` that decide how a new message is applied. In the comments of the
/// fields, a presence message is an online message or an offline message.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredConnection {
    /// Id of the latest online message.
    pub message_id: Option<MessageId>,
    /// Send time of the latest online message.
    pub message_sent_at: Timestamp,
    /// The client's tenant. `None` if the tenant is unknown.
    pub tenant: Option<Tenant>,
    /// Receive time, queue position and ingest stamp of the latest presence message.
    pub received_at: ReceivedAt,
    /// Whether the latest presence message is an offline message that a later heartbeat overruled.
    pub offline_message_overruled: bool,
    /// The latest heartbeat. `None` if the client sent no heartbeat after its latest presence
    /// message.
    pub last_heartbeat_at: Option<ReceivedAt>,
    /// Identifies this version of the row.
    pub version: RowVersion,
    /// Times and counters of the client's presence.
    pub presence: PresenceColumns,
}

/// Identifies a version of a row in `connections`. An upsert refers to the version that it replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowVersion {
    /// Time of the batch or of the tenant lookup that wrote the version. Heartbeats, claims and reports
    /// to inventory do not change the time.
    pub updated_at: Timestamp,
    /// Hash of the client's row in the search index. `None` if the store has no search index, if the row
    /// is new, or if another writer than the recorder wrote the version.
    pub search_hash: Option<i64>,
}

/// The columns of `disconnected_clients` that decide how a new message is applied.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredDisconnect {
    /// Id of the latest online message before the disconnect.
    pub message_id: Option<MessageId>,
    /// Send time of the latest online message before the disconnect.
    pub message_sent_at: Timestamp,
    /// The client's tenant before the disconnect. `None` if the tenant was unknown.
    pub tenant: Option<Tenant>,
    /// Receive time, queue position and ingest stamp of the offline message.
    pub received_at: ReceivedAt,
    /// Times and counters of the client's presence.
    pub presence: PresenceColumns,
}

/// Outcome of [`PresenceRepository::record_batch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The batch is durable.
    Committed,
    /// Nothing was written, because another process acquired these partitions.
    Fenced(Vec<PartitionLease>),
    /// Nothing was written, because the row of a client has changed since its state was loaded. The
    /// caller must load the states again.
    Conflict,
}

/// Reads and writes the presence of clients, for the recorder.
#[async_trait]
pub trait PresenceRepository: Send + Sync + 'static {
    /// Loads the stored state of clients in one query, and in a second one if some of them are new. Unknown
    /// clients are absent from the map.
    async fn load_client_states(
        &self,
        clients: &[ClientId],
    ) -> Result<HashMap<ClientId, StoredState>>;

    /// Returns whether [`Self::record_batch`] writes events. If not, the caller need not build them.
    fn records_events(&self) -> bool {
        true
    }

    /// Writes a batch in one transaction. The batch is durable when this method returns.
    ///
    /// Writes nothing if another process has acquired one of the partitions in `leases`.
    async fn record_batch(
        &self,
        batch: &PresenceBatch,
        leases: &[PartitionLease],
        now: Timestamp,
    ) -> Result<WriteOutcome>;

    /// Acquires partitions for the process `new_owner`. Increments the epoch of each partition, so
    /// the store rejects batches of the previous owners.
    async fn acquire_partitions(
        &self,
        queue: QueueTopic,
        partitions: &[i32],
        new_owner: &str,
    ) -> Result<Vec<PartitionLease>>;

    /// Restores the tenants of clients that are connected and tenantless. Skips all other clients.
    /// Returns the number of restored tenants.
    async fn restore_tenants(&self, clients: &[(ClientId, Tenant)], now: Timestamp) -> Result<u64>;
}
