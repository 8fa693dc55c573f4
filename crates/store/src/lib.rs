//! Contains every SQL statement of the program, behind the [`Store`] trait.
//!
//! `sqlite` and `postgres` implement the trait. Both implementations pass the same contract tests
//! (`crates/cloud-connector/tests/it/store_contract.rs`).
//!
//! Methods that serve API callers take the organization as the first argument. A tenantless client
//! has no [`OrgId`], so these methods cannot return a tenantless client.

mod dead_letters;
mod error;
mod lookup_queue;
mod page;
mod settings;

use std::collections::HashMap;

use async_trait::async_trait;

use domain::{
    ClientId, ClientInfo, ClientKind, Connection, Dialect, MessageId, OrgId, Tenant, Timestamp,
};

pub use dead_letters::{DeadLetter, DeadLetterFilter, DeadLetterLimits, StoredDeadLetter};
pub use error::{OpenSqliteError, StoreError};
pub use lookup_queue::{
    ClaimedConnection, LookupOutcome, LookupReason, LookupResult, OrgCount, TenantlessClient,
    TenantlessCounts,
};
pub use page::{ClientPage, ConnectionFilter, ConnectionPage, PageRequest, PageStart};
pub use settings::DeadLetterSettings;

/// The database rows of a client before a batch is applied.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredState {
    /// The client's row in `connections`, if the client is connected.
    pub connection: Option<StoredConnection>,
    /// The client's row in `disconnected_clients`, if the client has disconnected.
    pub disconnect: Option<StoredDisconnect>,
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
    /// Receive time and queue position of the latest presence message.
    pub received_at: ReceivedAt,
    /// Whether the latest presence message is an offline message that a later heartbeat overruled.
    pub offline_message_overruled: bool,
    /// Time of the latest heartbeat. `None` if the client sent no heartbeat after its latest
    /// presence message.
    pub last_heartbeat_at: Option<Timestamp>,
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
    /// Receive time and queue position of the offline message.
    pub received_at: ReceivedAt,
}

/// Receive time and queue position of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedAt {
    /// Receive time of the message.
    pub time: Timestamp,
    /// Position of the message in Kafka. `None` in deployments without Kafka.
    pub position: Option<QueuePosition>,
}

/// Position of a message in a Kafka topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePosition {
    /// Partition number.
    pub partition: i32,
    /// Offset of the message in the partition.
    pub offset: i64,
}

impl QueuePosition {
    /// Creates a position from two nullable columns. Returns `None` if a column is null.
    #[must_use]
    pub fn from_columns(partition: Option<i32>, offset: Option<i64>) -> Option<Self> {
        let (partition, offset) = partition.zip(offset)?;
        Some(Self { partition, offset })
    }
}

/// Returns the tenant from two columns of a row. Returns `None` if `org_id` is empty.
#[must_use]
pub fn tenant_from_columns(org_id: &str, account: String) -> Option<Tenant> {
    let org_id = OrgId::new(org_id).ok()?;
    Some(Tenant { org_id, account })
}

/// The data of an online message. The store inserts or updates the client's row in `connections`.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionUpsert {
    /// Client id.
    pub client_id: ClientId,
    /// Dialect of the online message.
    pub dialect: Dialect,
    /// Whether the client is a host or a proxy.
    pub kind: ClientKind,
    /// Topic prefix of the online message.
    pub topic_prefix: String,
    /// Facts, dispatchers, tags, name and version that the client sent.
    pub info: ClientInfo,
    /// Id of the online message.
    pub message_id: Option<MessageId>,
    /// Send time of the online message.
    pub message_sent_at: Timestamp,
    /// Receive time and queue position of the online message.
    pub received_at: ReceivedAt,
    /// Time of a heartbeat that was received later than the online message but processed earlier.
    pub last_heartbeat_at: Option<Timestamp>,
    /// How the result of the tenant lookup changes the row.
    pub tenant: TenantChange,
    /// Whether inventory accepts this host.
    pub inventory_eligible: bool,
    /// Time at which the report to inventory was delivered. `None` if the report is still pending.
    pub reported_to_inventory_at: Option<Timestamp>,
}

/// A heartbeat to record.
///
/// The store ignores the heartbeat of an unknown client, and a heartbeat that is not newer than the
/// client's latest presence message. Other heartbeats have these effects:
///
/// - A connected client stays connected, even if an older offline message is processed later.
/// - A disconnected client becomes connected again, with its previous data.
#[derive(Debug, Clone, PartialEq)]
pub struct HeartbeatUpdate {
    /// Client id.
    pub client_id: ClientId,
    /// Receive time of the heartbeat.
    pub received_at: Timestamp,
    /// How the result of the tenant lookup changes the row. `None` leaves the tenant unchanged.
    pub tenant: Option<TenantChange>,
}

/// An offline message to record. The message ends the client's connection, unless the store has a
/// later heartbeat of the client.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionEnd {
    /// Client id.
    pub client_id: ClientId,
    /// Receive time and queue position of the offline message.
    pub received_at: ReceivedAt,
}

/// How the result of a tenant lookup changes a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantChange {
    /// The lookup found this tenant. The store resets the number of failed lookups.
    Found(Tenant),
    /// The lookup finished at this time and found no tenant. The client becomes tenantless.
    NotFound(Timestamp),
    /// The lookup was not possible. The client keeps this tenant, which is already stored.
    Keep(Tenant),
    /// The lookup was not possible and no tenant is stored. The client becomes tenantless and
    /// immediately due for a lookup.
    PendingLookup,
}

/// The changes of one batch. The store writes the lists in the order of these fields, in one
/// transaction.
///
/// Each list contains a client at most once. Two lists can contain the same client, for example if
/// the client connected and disconnected within the batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PresenceBatch {
    /// Clients that sent an online message.
    pub upserts: Vec<ConnectionUpsert>,
    /// Clients that sent a heartbeat.
    pub heartbeats: Vec<HeartbeatUpdate>,
    /// Clients that sent an offline message.
    pub connection_ends: Vec<ConnectionEnd>,
    /// Messages that can never be processed.
    pub dead_letters: Vec<DeadLetter>,
    /// Limits on the number of stored dead letters. The store deletes the oldest dead letters above
    /// a limit.
    pub dead_letter_limits: DeadLetterLimits,
}

impl PresenceBatch {
    /// Returns whether the batch contains no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.upserts.is_empty()
            && self.heartbeats.is_empty()
            && self.connection_ends.is_empty()
            && self.dead_letters.is_empty()
    }
}

/// A Kafka topic that the recorder reads. The name of the topic in Kafka is configurable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueueTopic {
    /// Topic of presence messages.
    Ingress,
    /// Topic of responses and heartbeats.
    Answers,
}

impl QueueTopic {
    /// Returns the topic's name in the database and in logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Answers => "answers",
        }
    }
}

/// Ownership of a Kafka partition. The owner may write the partition's messages to the database
/// until another process acquires the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionLease {
    /// Kafka topic of the partition.
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
    async fn load_client_states(
        &self,
        clients: &[ClientId],
    ) -> Result<HashMap<ClientId, StoredState>, StoreError>;

    /// Writes a batch in one transaction. The batch is durable when this method returns.
    ///
    /// Writes nothing if another process has acquired one of the partitions in `leases`.
    async fn record_batch(
        &self,
        batch: &PresenceBatch,
        leases: &[PartitionLease],
        now: Timestamp,
    ) -> Result<WriteOutcome, StoreError>;

    /// Acquires partitions for the process `new_owner`. Increments the epoch of each partition, so
    /// the store rejects batches of the previous owners.
    async fn acquire_partitions(
        &self,
        queue: QueueTopic,
        partitions: &[i32],
        new_owner: &str,
    ) -> Result<Vec<PartitionLease>, StoreError>;

    /// Deletes the data of clients that disconnected before `time`. Returns the number of deleted
    /// clients.
    async fn delete_clients_disconnected_before(&self, time: Timestamp) -> Result<u64, StoreError>;

    /// Compacts internal tables to keep queries fast. Does not change the result of any query.
    async fn run_maintenance(&self) -> Result<(), StoreError>;

    /// Finds a connection of an organization.
    async fn find_connection_for_org(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError>;

    /// Finds the connections of those `clients` that belong to the organization. Runs one query.
    /// The order of the connections is undefined.
    async fn find_connections_for_org(
        &self,
        org: &OrgId,
        clients: &[ClientId],
    ) -> Result<Vec<Connection>, StoreError>;

    /// Like [`Store::find_connection_for_org`], but also finds a Satellite server of another
    /// organization.
    async fn find_org_or_satellite_connection(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError>;

    /// Lists a page of an organization's connections, ordered by client id.
    async fn list_connections_for_org(
        &self,
        org: &OrgId,
        request: &PageRequest,
    ) -> Result<ConnectionPage, StoreError>;

    /// Lists a page of the connected clients that have a tenant, ordered by organization and client
    /// id. Only management endpoints may call this method.
    async fn list_all_clients(&self, offset: u64, limit: u64) -> Result<ClientPage, StoreError>;

    /// Lists the ids of connected clients in ascending order, including tenantless clients. Starts
    /// after the id `after_client`.
    ///
    /// For internal jobs only. API endpoints must not call this method.
    async fn list_client_ids(
        &self,
        after_client: Option<&ClientId>,
        limit: u32,
    ) -> Result<Vec<ClientId>, StoreError>;

    /// Claims rows that are due for a tenant lookup. Other jobs skip the rows until `claim_until`.
    ///
    /// Claims only rows without a claim and rows whose claim ended before `claims_ended_before`.
    async fn claim_for_lookup(
        &self,
        reason: LookupReason,
        limit: u32,
        claims_ended_before: Timestamp,
        claim_until: Timestamp,
    ) -> Result<Vec<ClaimedConnection>, StoreError>;

    /// Counts the rows that are due for a tenant lookup and not claimed at `now`.
    async fn count_due_rows(&self, reason: LookupReason, now: Timestamp)
    -> Result<u64, StoreError>;

    /// Writes the results of tenant lookups and returns the number of changed rows.
    ///
    /// Skips rows that changed since they were claimed. For [`LookupOutcome::Unavailable`], the
    /// store only ends the claim, and the returned number does not include the row.
    async fn save_lookup_results(
        &self,
        results: &[LookupResult],
        now: Timestamp,
    ) -> Result<u64, StoreError>;

    /// Restores the tenants of clients that are connected and tenantless. Skips all other clients.
    /// Returns the number of restored tenants.
    async fn restore_tenants(
        &self,
        clients: &[(ClientId, Tenant)],
        now: Timestamp,
    ) -> Result<u64, StoreError>;

    /// Counts the tenantless clients. A client with `max_attempts` or more failed lookups counts as
    /// exhausted.
    async fn count_tenantless_clients(
        &self,
        max_attempts: u32,
    ) -> Result<TenantlessCounts, StoreError>;

    /// Lists tenantless clients. The client whose last lookup is oldest comes first.
    ///
    /// For operator commands only. API endpoints must not call this method.
    async fn list_tenantless_clients(
        &self,
        limit: u32,
    ) -> Result<Vec<TenantlessClient>, StoreError>;

    /// Makes tenantless clients immediately due for a lookup and resets their number of failed
    /// lookups. `None` selects all tenantless clients. Returns the number of changed clients.
    async fn reset_tenantless_clients(
        &self,
        clients: Option<&[ClientId]>,
    ) -> Result<u64, StoreError>;

    /// Deletes the rows of tenantless clients. Skips clients that have a tenant. Returns the number
    /// of deleted rows.
    async fn delete_tenantless_clients(&self, clients: &[ClientId]) -> Result<u64, StoreError>;

    /// Counts the connections that have a tenant.
    async fn count_connections_with_tenant(&self) -> Result<u64, StoreError>;

    /// Returns the number of connections of each organization, largest number first, and the number
    /// of tenantless connections. `limit` is the maximum number of organizations.
    async fn count_by_org(&self, limit: u32) -> Result<(Vec<OrgCount>, u64), StoreError>;

    /// Lists dead letters without their payloads, in descending order of their ids.
    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>, StoreError>;

    /// Finds a dead letter with its payload.
    async fn find_dead_letter(
        &self,
        dead_letter_id: i64,
    ) -> Result<Option<StoredDeadLetter>, StoreError>;

    /// Requests the replay of a dead letter. Returns false if the dead letter does not exist.
    async fn request_replay(&self, dead_letter_id: i64, now: Timestamp)
    -> Result<bool, StoreError>;

    /// Deletes a dead letter after its replay. Returns whether the dead letter was deleted.
    ///
    /// If the stored number of occurrences differs from `occurrences`, the message was rejected
    /// again. The dead letter is then not deleted.
    async fn finish_replay(
        &self,
        dead_letter_id: i64,
        occurrences: u64,
    ) -> Result<bool, StoreError>;

    /// Deletes the dead letters that match the filter. Returns the number of deleted dead letters.
    async fn purge_dead_letters(&self, filter: &DeadLetterFilter) -> Result<u64, StoreError>;

    /// Checks that the database responds and has the schema of this version.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Closes all connections to the database. Every later call fails.
    async fn close(&self);
}
