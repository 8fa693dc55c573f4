//! All SQL. One trait in whole use cases, an implementation a database, one contract suite for all
//! of them (`tests/it/store_contract.rs`).
//!
//! A method that serves callers takes the organisation first. A connection without a tenant has no
//! `OrgId`, so no such method can return it.

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

/// What the store knows of a client before a batch is folded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredState {
    /// Its row, if it is connected.
    pub connected: Option<StoredConnection>,
    /// What is remembered of it, if it left.
    pub departed: Option<StoredDisconnect>,
}

/// The part of a row that decides what a new message means.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredConnection {
    /// The online message that the row is of.
    pub message_id: Option<MessageId>,
    /// When that was sent.
    pub message_sent: Timestamp,
    /// To whom it belongs.
    pub tenant: Option<Tenant>,
    /// When its last word about presence was heard, and where in the queue.
    pub heard: ReceivedAt,
    /// That word was a farewell: a later sign of life holds it.
    pub has_left: bool,
    /// The latest sign of life that matters.
    pub last_heartbeat_at: Option<Timestamp>,
}

/// The part of what is remembered that decides what a new message means.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredDisconnect {
    /// The online message that it was connected by.
    pub message_id: Option<MessageId>,
    /// When that was sent.
    pub message_sent: Timestamp,
    /// To whom it belonged.
    pub tenant: Option<Tenant>,
    /// When it left, and where in the queue that was said.
    pub heard: ReceivedAt,
}

/// When the broker had a message, and where in the queue it stood, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedAt {
    /// When the broker had it.
    pub at: Timestamp,
    /// Its place in the queue.
    pub place: Option<QueuePosition>,
}

/// A place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePosition {
    /// The partition.
    pub partition: i32,
    /// The offset in it.
    pub offset: i64,
}

impl QueuePosition {
    fn from_columns(partition: Option<i32>, offset: Option<i64>) -> Option<Self> {
        let (partition, offset) = partition.zip(offset)?;
        Some(Self { partition, offset })
    }
}

/// The tenant of a row: `''` is no organisation at all.
fn tenant_of(org_id: &str, account: String) -> Option<Tenant> {
    let org_id = OrgId::new(org_id).ok()?;
    Some(Tenant { org_id, account })
}

/// A client that is connected at the end of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionUpsert {
    /// Who.
    pub client_id: ClientId,
    /// How to speak to it.
    pub dialect: Dialect,
    /// What it is.
    pub kind: ClientKind,
    /// Where it was heard.
    pub topic_prefix: String,
    /// What it said of itself.
    pub reported: ClientInfo,
    /// The online message's id.
    pub message_id: Option<MessageId>,
    /// When it was sent.
    pub message_sent: Timestamp,
    /// When the broker had it, and where in the queue it stood.
    pub heard: ReceivedAt,
    /// A later sign of life, that has overtaken this message.
    pub last_heartbeat_at: Option<Timestamp>,
    /// What the tenant step found.
    pub tenant: TenantChange,
    /// Whether inventory would take it.
    pub inventory_eligible: bool,
    /// When inventory received it, if it has; otherwise it is owed.
    pub reported_to_inventory_at: Option<Timestamp>,
}

/// A client that showed life without saying what it is. One that left is brought back as it was;
/// one that is connected stays so, whatever an older message says; anybody else stays unknown.
#[derive(Debug, Clone, PartialEq)]
pub struct HeartbeatUpdate {
    /// Who.
    pub client_id: ClientId,
    /// When the broker had the sign. It counts if that is after its last word about presence.
    pub at: Timestamp,
    /// What the tenant step found, if there was one. Otherwise the tenant is as it was.
    pub tenant: Option<TenantChange>,
}

/// A client that said that it left. It is not connected any more, unless it showed life later.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionEnd {
    /// Who.
    pub client_id: ClientId,
    /// When the broker had the news, and where in the queue it stood.
    pub heard: ReceivedAt,
}

/// What a tenant lookup does to a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantChange {
    /// It belongs to this one: set it, nothing is due, the count of failures starts over.
    Found(Tenant),
    /// Belongs to nobody, as of this moment.
    NotFound(Timestamp),
    /// No answer, but this one was known: keep it.
    Keep(Tenant),
    /// No answer and none known: belongs to nobody for now, and is due for a lookup at once.
    PendingLookup,
}

/// The outcome of a batch, written in one transaction and in this order. A client stands at most
/// once in each list; in two, if it came and went.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PresenceBatch {
    /// Clients that are connected now, by their own word.
    pub arrivals: Vec<ConnectionUpsert>,
    /// Clients that showed life.
    pub sightings: Vec<HeartbeatUpdate>,
    /// Clients that said that they left.
    pub departures: Vec<ConnectionEnd>,
    /// Messages that can never be processed.
    pub dead_letters: Vec<DeadLetter>,
    /// How many dead letters are kept: the latest.
    pub letters: DeadLetterLimits,
}

impl PresenceBatch {
    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
            && self.sightings.is_empty()
            && self.departures.is_empty()
            && self.dead_letters.is_empty()
    }
}

/// The queues whose partitions are fenced. Their topics' names may differ by deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueueTopic {
    /// Presence.
    Ingress,
    /// Answers and signs of life.
    Answers,
}

impl QueueTopic {
    /// Its name in the store and in logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Answers => "answers",
        }
    }
}

/// The right to write for one partition of the queue, as it was when the batch was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionLease {
    /// The queue.
    pub queue: QueueTopic,
    /// The partition.
    pub partition: i32,
    /// What [`Store::acquire_partitions`] gave for it.
    pub epoch: i64,
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It is durable.
    Committed,
    /// Nothing was written: these partitions have another owner by now.
    Fenced(Vec<PartitionLease>),
}

/// What the rest of the program may ask of a database.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// What is known of these clients, in one query. Who is not in the answer is not known.
    async fn load_states(
        &self,
        clients: &[ClientId],
    ) -> Result<HashMap<ClientId, StoredState>, StoreError>;

    /// Writes a batch: all of it or nothing, durable when it returns. Nothing, if a partition that
    /// it came from was taken over meanwhile.
    async fn record_batch(
        &self,
        batch: &PresenceBatch,
        fences: &[PartitionLease],
        now: Timestamp,
    ) -> Result<WriteOutcome, StoreError>;

    /// Takes partitions of the queue over: from now on batches under an older epoch are fenced.
    async fn acquire_partitions(
        &self,
        queue: QueueTopic,
        partitions: &[i32],
        owner: &str,
    ) -> Result<Vec<PartitionLease>, StoreError>;

    /// Forgets clients that left before a moment. Returns how many.
    async fn delete_disconnected_before(&self, before: Timestamp) -> Result<u64, StoreError>;

    /// Housekeeping that keeps questions fast. Changes no answer.
    async fn tidy(&self) -> Result<(), StoreError>;

    /// An organisation's connection to a client.
    async fn find_for_org(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError>;

    /// An organisation's connections to any of these clients, in one query, in no order.
    async fn find_many_for_org(
        &self,
        org: &OrgId,
        clients: &[ClientId],
    ) -> Result<Vec<Connection>, StoreError>;

    /// As [`Store::find_for_org`]; also a Satellite server of another organisation.
    async fn find_for_org_or_satellite(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError>;

    /// A page of an organisation's connections, ordered by client id.
    async fn list_for_org(
        &self,
        org: &OrgId,
        wanted: &PageRequest,
    ) -> Result<ConnectionPage, StoreError>;

    /// A page of everybody who belongs to an organisation, ordered by that and client id, and how many
    /// there are. For callers who manage all of them.
    async fn list_all(&self, offset: u64, limit: u64) -> Result<ClientPage, StoreError>;

    /// Clients in order, whoever they belong to. For the connector's own housekeeping; nothing of it
    /// reaches a caller.
    async fn client_ids(
        &self,
        after: Option<&ClientId>,
        limit: u32,
    ) -> Result<Vec<ClientId>, StoreError>;

    /// Claims rows that are due, until a moment, so that nobody else is given them. Rows whose claim
    /// ended before `unclaimed` are given, and those that were never claimed.
    async fn claim_for_lookup(
        &self,
        due: LookupReason,
        limit: u32,
        unclaimed: Timestamp,
        until: Timestamp,
    ) -> Result<Vec<ClaimedConnection>, StoreError>;

    /// How many rows are due.
    async fn count_due(&self, due: LookupReason, now: Timestamp) -> Result<u64, StoreError>;

    /// Writes what was found out. What has changed meanwhile stays. Returns how many were written. The
    /// claim of a row without an answer ends now.
    async fn save_lookup_results(
        &self,
        findings: &[LookupResult],
        now: Timestamp,
    ) -> Result<u64, StoreError>;

    /// Gives clients the tenant back that they were recorded without in the last minutes. Who has one
    /// by now, or is gone, is left alone.
    async fn restore_tenants(
        &self,
        clients: &[(ClientId, Tenant)],
        now: Timestamp,
    ) -> Result<u64, StoreError>;

    /// How clients without a tenant stand, for operators.
    async fn count_tenantless(&self, max_attempts: u32) -> Result<TenantlessCounts, StoreError>;

    /// Clients without a tenant, for operators; nothing of it reaches a caller. Those that wait
    /// longest first.
    async fn list_tenantless(&self, limit: u32) -> Result<Vec<TenantlessClient>, StoreError>;

    /// Makes clients without a tenant due at once, with all their attempts: these, or all of them.
    async fn reset_tenantless(&self, clients: Option<&[ClientId]>) -> Result<u64, StoreError>;

    /// Removes the rows of clients without a tenant: these.
    async fn delete_tenantless(&self, clients: &[ClientId]) -> Result<u64, StoreError>;

    /// How many connections belong to an organisation.
    async fn count_connected(&self) -> Result<u64, StoreError>;

    /// Connections by organisation, the largest first; and how many have none.
    async fn count_by_org(&self, limit: u32) -> Result<(Vec<OrgCount>, u64), StoreError>;

    /// Dead letters without their payloads, the latest number first.
    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>, StoreError>;

    /// A dead letter, with its payload.
    async fn dead_letter(&self, id: i64) -> Result<Option<StoredDeadLetter>, StoreError>;

    /// Notes that a dead letter is to be processed again. False if there is none of that number.
    async fn request_replay(&self, id: i64, now: Timestamp) -> Result<bool, StoreError>;

    /// A dead letter was processed again: forgets it, unless it was refused again meanwhile
    /// (`times` has changed). True if it is forgotten.
    async fn finish_replay(&self, id: i64, times: u64) -> Result<bool, StoreError>;

    /// Forgets dead letters. Returns how many.
    async fn purge_dead_letters(&self, filter: &DeadLetterFilter) -> Result<u64, StoreError>;

    /// Whether the database answers, and holds the schema that this program writes.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Lets go of the database. Nothing works after it.
    async fn close(&self);
}
