//! The database: every SQL statement of the program, behind the [`Store`] trait.
//!
//! Each database has one implementation (`sqlite`, `postgres`). Both pass the same contract tests
//! (`tests/it/store_contract.rs`).
//!
//! Methods that serve API callers take the organization as the first argument. A tenantless client
//! has no [`OrgId`], so these methods cannot return it.

mod dead_letters;
mod error;
mod lookup_queue;
mod page;
pub mod postgres;
pub mod sqlite;

use std::collections::HashMap;

use async_trait::async_trait;

use crate::domain::{
    ClientId, ClientInfo, ClientKind, Connection, Dialect, MessageId, OrgId, Tenant, Timestamp,
};

pub use dead_letters::{DeadLetter, DeadLetterFilter, DeadLetterLimits, StoredDeadLetter};
pub use error::{OpenSqliteError, StoreError};
pub use lookup_queue::{
    ClaimedConnection, LookupOutcome, LookupReason, LookupResult, OrgCount, TenantlessClient,
    TenantlessCounts,
};
pub use page::{ClientPage, ConnectionPage, Filter, PageRequest, PageStart};

/// What is stored about a client before a batch is applied.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredState {
    /// The client's row in `connections`, if it is connected.
    pub connection: Option<StoredConnection>,
    /// The client's row in `disconnected_clients`, if it has disconnected.
    pub disconnect: Option<StoredDisconnect>,
}

/// The columns of `connections` that decide how a new message is applied.
///
/// A presence message is an online or an offline message.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredConnection {
    /// Id of the latest online message.
    pub message_id: Option<MessageId>,
    /// Send time of the latest online message.
    pub message_sent: Timestamp,
    /// The tenant, if known.
    pub tenant: Option<Tenant>,
    /// Receive time and queue position of the latest presence message.
    pub received: ReceivedAt,
    /// Whether the latest presence message is an offline message that a later heartbeat overruled.
    pub offline_overruled: bool,
    /// Time of the latest heartbeat after the latest presence message.
    pub last_heartbeat_at: Option<Timestamp>,
}

/// The columns of `disconnected_clients` that decide how a new message is applied.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredDisconnect {
    /// Id of the online message of the ended connection.
    pub message_id: Option<MessageId>,
    /// Send time of that online message.
    pub message_sent: Timestamp,
    /// The tenant that the client had, if known.
    pub tenant: Option<Tenant>,
    /// Receive time and queue position of the offline message.
    pub received: ReceivedAt,
}

/// When and where a message was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedAt {
    /// Receive time.
    pub time: Timestamp,
    /// Position in Kafka. `None` without Kafka.
    pub position: Option<QueuePosition>,
}

/// Position of a message in a Kafka topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePosition {
    /// Partition number.
    pub partition: i32,
    /// Offset in the partition.
    pub offset: i64,
}

impl QueuePosition {
    fn from_columns(partition: Option<i32>, offset: Option<i64>) -> Option<Self> {
        let (partition, offset) = partition.zip(offset)?;
        Some(Self { partition, offset })
    }
}

/// Returns the tenant of a row, or `None` if `org_id` is empty.
fn tenant_of(org_id: &str, account: String) -> Option<Tenant> {
    let org_id = OrgId::new(org_id).ok()?;
    Some(Tenant { org_id, account })
}

/// Inserts or updates the row of a client that sent an online message.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionUpsert {
    /// Client id.
    pub client_id: ClientId,
    /// Dialect of the online message.
    pub dialect: Dialect,
    /// Host or proxy.
    pub kind: ClientKind,
    /// Topic prefix of the online message.
    pub topic_prefix: String,
    /// What the client reports about itself.
    pub info: ClientInfo,
    /// Id of the online message.
    pub message_id: Option<MessageId>,
    /// Send time of the online message.
    pub message_sent: Timestamp,
    /// Receive time and queue position of the online message.
    pub received: ReceivedAt,
    /// Time of a heartbeat that was received later than the online message but processed earlier.
    pub last_heartbeat_at: Option<Timestamp>,
    /// Result of the tenant lookup.
    pub tenant: TenantChange,
    /// Whether inventory accepts this host.
    pub inventory_eligible: bool,
    /// Time at which the report to inventory was delivered. `None` leaves the report pending.
    pub reported_to_inventory_at: Option<Timestamp>,
}

/// Records a heartbeat.
///
/// The heartbeat has an effect only if it is newer than the client's latest presence message. A
/// connected client then stays connected even if an older offline message is processed later. A
/// disconnected client is connected again with its previous data. An unknown client is ignored.
#[derive(Debug, Clone, PartialEq)]
pub struct HeartbeatUpdate {
    /// Client id.
    pub client_id: ClientId,
    /// Receive time of the heartbeat.
    pub received_at: Timestamp,
    /// Result of the tenant lookup. `None` leaves the tenant unchanged.
    pub tenant: Option<TenantChange>,
}

/// Ends a connection after an offline message, unless a later heartbeat is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionEnd {
    /// Client id.
    pub client_id: ClientId,
    /// Receive time and queue position of the offline message.
    pub received: ReceivedAt,
}

/// How a tenant lookup changes a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantChange {
    /// The lookup found this tenant. Resets the number of failed lookups.
    Found(Tenant),
    /// The lookup found no tenant at this time. Makes the client tenantless.
    NotFound(Timestamp),
    /// The lookup was not possible. Keeps this tenant, which is already stored.
    Keep(Tenant),
    /// The lookup was not possible and no tenant is stored. Makes the client tenantless and due for
    /// a lookup at once.
    PendingLookup,
}

/// The changes of one batch, written in one transaction in the order of the fields.
///
/// A client occurs at most once in each list. It can occur in two lists, for example if it
/// connected and disconnected within the batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PresenceBatch {
    /// Clients that sent an online message.
    pub upserts: Vec<ConnectionUpsert>,
    /// Clients that sent a heartbeat.
    pub heartbeats: Vec<HeartbeatUpdate>,
    /// Clients that sent an offline message.
    pub ends: Vec<ConnectionEnd>,
    /// Messages that can never be processed.
    pub dead_letters: Vec<DeadLetter>,
    /// Limits on the number of stored dead letters. The oldest above a limit are deleted.
    pub dead_letter_limits: DeadLetterLimits,
}

impl PresenceBatch {
    /// Whether the batch contains no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.upserts.is_empty()
            && self.heartbeats.is_empty()
            && self.ends.is_empty()
            && self.dead_letters.is_empty()
    }
}

/// A Kafka topic whose partitions are fenced. Deployments can configure other topic names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueueTopic {
    /// Presence messages.
    Ingress,
    /// Responses and heartbeats.
    Answers,
}

impl QueueTopic {
    /// Returns the name in the database and in logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Answers => "answers",
        }
    }
}

/// Ownership of a partition: permits writing its messages until another process acquires it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionLease {
    /// Kafka topic.
    pub queue: QueueTopic,
    /// Partition number.
    pub partition: i32,
    /// Epoch that [`Store::acquire_partitions`] returned.
    pub epoch: i64,
}

/// Outcome of [`Store::record_batch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The batch is durable.
    Committed,
    /// Nothing was written, because another process acquired these partitions.
    Fenced(Vec<PartitionLease>),
}

/// Operations that the rest of the program runs on a database.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Loads the stored state of clients in one query. Unknown clients are absent from the map.
    async fn load_states(
        &self,
        clients: &[ClientId],
    ) -> Result<HashMap<ClientId, StoredState>, StoreError>;

    /// Writes a batch in one transaction. The batch is durable when this returns.
    ///
    /// Writes nothing if another process has acquired a partition of `leases`.
    async fn record_batch(
        &self,
        batch: &PresenceBatch,
        leases: &[PartitionLease],
        now: Timestamp,
    ) -> Result<WriteOutcome, StoreError>;

    /// Acquires partitions: increments their epochs, which fences the previous owners.
    async fn acquire_partitions(
        &self,
        queue: QueueTopic,
        partitions: &[i32],
        owner: &str,
    ) -> Result<Vec<PartitionLease>, StoreError>;

    /// Deletes the data of clients that disconnected before a time. Returns the number of clients.
    async fn delete_disconnected_before(&self, before: Timestamp) -> Result<u64, StoreError>;

    /// Compacts internal tables to keep queries fast. Does not change the result of any query.
    async fn run_maintenance(&self) -> Result<(), StoreError>;

    /// Finds a connection of an organization.
    async fn find_for_org(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError>;

    /// Finds the connections of an organization among `clients`, in one query and in any order.
    async fn find_many_for_org(
        &self,
        org: &OrgId,
        clients: &[ClientId],
    ) -> Result<Vec<Connection>, StoreError>;

    /// Like [`Store::find_for_org`], but also finds a Satellite server of another organization.
    async fn find_for_org_or_satellite(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError>;

    /// Lists a page of an organization's connections, ordered by client id.
    async fn list_for_org(
        &self,
        org: &OrgId,
        request: &PageRequest,
    ) -> Result<ConnectionPage, StoreError>;

    /// Lists a page of the connected clients that have a tenant, ordered by organization and client
    /// id. Only management endpoints may call this.
    async fn list_all(&self, offset: u64, limit: u64) -> Result<ClientPage, StoreError>;

    /// Lists the ids of connected clients in ascending order, including tenantless clients.
    ///
    /// For internal jobs only. API endpoints must not call this.
    async fn list_client_ids(
        &self,
        after: Option<&ClientId>,
        limit: u32,
    ) -> Result<Vec<ClientId>, StoreError>;

    /// Claims rows that are due for a tenant lookup. Other jobs skip the rows until `claim_until`.
    ///
    /// Skips rows whose claim ends at `claims_ended_before` or later.
    async fn claim_for_lookup(
        &self,
        reason: LookupReason,
        limit: u32,
        claims_ended_before: Timestamp,
        claim_until: Timestamp,
    ) -> Result<Vec<ClaimedConnection>, StoreError>;

    /// Counts the rows that are due for a tenant lookup and not claimed at `now`.
    async fn count_due(&self, reason: LookupReason, now: Timestamp) -> Result<u64, StoreError>;

    /// Writes the results of tenant lookups and returns the number of changed rows.
    ///
    /// Skips rows that changed since they were claimed. [`LookupOutcome::Unavailable`] only ends
    /// the claim and is not counted.
    async fn save_lookup_results(
        &self,
        results: &[LookupResult],
        now: Timestamp,
    ) -> Result<u64, StoreError>;

    /// Restores the tenants of clients that are connected and tenantless. Skips all other clients.
    async fn restore_tenants(
        &self,
        clients: &[(ClientId, Tenant)],
        now: Timestamp,
    ) -> Result<u64, StoreError>;

    /// Counts the tenantless clients.
    async fn count_tenantless(&self, max_attempts: u32) -> Result<TenantlessCounts, StoreError>;

    /// Lists tenantless clients, the earliest lookup first.
    ///
    /// For operator commands only. API endpoints must not call this.
    async fn list_tenantless(&self, limit: u32) -> Result<Vec<TenantlessClient>, StoreError>;

    /// Makes tenantless clients due for a lookup at once and resets their number of failed lookups.
    /// `None` selects all tenantless clients. Returns the number of clients.
    async fn reset_tenantless(&self, clients: Option<&[ClientId]>) -> Result<u64, StoreError>;

    /// Deletes the rows of these clients if they are tenantless. Returns the number of rows.
    async fn delete_tenantless(&self, clients: &[ClientId]) -> Result<u64, StoreError>;

    /// Counts the connections that have a tenant.
    async fn count_with_tenant(&self) -> Result<u64, StoreError>;

    /// Counts connections per organization, the largest organization first, and the tenantless
    /// connections.
    async fn count_by_org(&self, limit: u32) -> Result<(Vec<OrgCount>, u64), StoreError>;

    /// Lists dead letters without their payloads, the highest id first.
    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>, StoreError>;

    /// Finds a dead letter with its payload.
    async fn find_dead_letter(&self, id: i64) -> Result<Option<StoredDeadLetter>, StoreError>;

    /// Requests the replay of a dead letter. Returns false if the id does not exist.
    async fn request_replay(&self, id: i64, now: Timestamp) -> Result<bool, StoreError>;

    /// Deletes a dead letter after its replay. Returns whether it was deleted.
    ///
    /// Keeps the dead letter if its number of occurrences differs from `occurrences`: then the
    /// message was rejected again.
    async fn finish_replay(&self, id: i64, occurrences: u64) -> Result<bool, StoreError>;

    /// Deletes the dead letters that match the filter. Returns their number.
    async fn purge_dead_letters(&self, filter: &DeadLetterFilter) -> Result<u64, StoreError>;

    /// Checks that the database responds and has the schema of this version.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Closes all connections to the database. Every later call fails.
    async fn close(&self);
}
