//! All SQL. One trait in whole use cases, an implementation a database, one contract suite for all
//! of them (`tests/it/store_contract.rs`).
//!
//! A method that serves callers takes the organisation first. A connection without a tenant has no
//! `OrgId`, so no such method can return it.

mod error;
pub mod postgres;
pub mod sqlite;

use std::collections::HashMap;

use async_trait::async_trait;

use crate::domain::{
    ClientId, Connection, Dialect, Kind, MessageId, OrgId, Reported, Tenant, Timestamp,
};

pub use error::{OpenError, StoreError};

/// The queue whose partitions are fenced. There is one; its topic's name may differ by deployment.
const QUEUE: &str = "ingress";

/// What the store knows of a client before a batch is folded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Known {
    /// Its row, if it is connected.
    pub connected: Option<KnownConnection>,
    /// The tenant it had when it left, if it left and had one.
    pub departed_tenant: Option<Tenant>,
}

/// The part of a row that decides what a new message means.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownConnection {
    /// The online message that the row is of.
    pub message_id: Option<MessageId>,
    /// When that was sent.
    pub message_sent: Timestamp,
    /// To whom it belongs.
    pub tenant: Option<Tenant>,
}

/// The tenant of a row: `''` is no organisation at all.
fn tenant_of(org_id: &str, account: String) -> Option<Tenant> {
    let org_id = OrgId::new(org_id).ok()?;
    Some(Tenant { org_id, account })
}

/// A client that is connected at the end of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    /// Who.
    pub client_id: ClientId,
    /// How to speak to it.
    pub dialect: Dialect,
    /// What it is.
    pub kind: Kind,
    /// Where it was heard.
    pub topic_prefix: String,
    /// What it said of itself.
    pub reported: Reported,
    /// The online message's id.
    pub message_id: Option<MessageId>,
    /// When it was sent.
    pub message_sent: Timestamp,
    /// When the broker had it.
    pub last_seen: Timestamp,
    /// What the tenant step found.
    pub tenant: TenantChange,
}

/// What a tenant lookup does to a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantChange {
    /// It belongs to this one: set it, nothing is due, the count of failures starts over.
    Found(Tenant),
    /// Belongs to nobody, as of this moment.
    NotFound(Timestamp),
    /// No answer, but this one was known: keep it.
    Kept(Tenant),
    /// No answer and none known: belongs to nobody for now, and is due for a lookup at once.
    Unknown,
}

/// The outcome of a batch, written in one transaction. No client stands in it twice.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// Clients that are connected now.
    pub arrivals: Vec<Arrival>,
    /// Clients that are not.
    pub departures: Vec<ClientId>,
}

impl Batch {
    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty() && self.departures.is_empty()
    }
}

/// The right to write for one partition of the queue, as it was when the batch was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fence {
    /// The partition.
    pub partition: i32,
    /// What [`Store::take_partitions`] gave for it.
    pub epoch: i64,
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It is durable.
    Done,
    /// Nothing was written: these partitions have another owner by now.
    Fenced(Vec<i32>),
}

/// A page of an organisation's connections.
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    /// How many there are in all, whatever the page.
    pub count: u64,
    /// This page, ordered by client id.
    pub connections: Vec<Connection>,
}

/// What the rest of the program may ask of a database.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// What is known of these clients, in one query. Who is not in the answer is not known.
    async fn known(&self, clients: &[ClientId]) -> Result<HashMap<ClientId, Known>, StoreError>;

    /// Writes a batch: all of it or nothing, durable when it returns. Nothing, if a partition that
    /// it came from was taken over meanwhile.
    async fn record_batch(
        &self,
        batch: &Batch,
        fences: &[Fence],
        now: Timestamp,
    ) -> Result<Written, StoreError>;

    /// Takes partitions of the queue over: from now on batches under an older epoch are fenced.
    async fn take_partitions(
        &self,
        partitions: &[i32],
        owner: &str,
    ) -> Result<Vec<Fence>, StoreError>;

    /// Forgets clients that left before a moment. Returns how many.
    async fn forget_departed(&self, before: Timestamp) -> Result<u64, StoreError>;

    /// An organisation's connection to a client.
    async fn find_for_org(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError>;

    /// A page of an organisation's connections, ordered by client id, and how many there are.
    async fn list_for_org(
        &self,
        org: &OrgId,
        offset: u64,
        limit: u64,
    ) -> Result<Listing, StoreError>;

    /// Clients in order, whoever they belong to. For the connector's own housekeeping; nothing of it
    /// reaches a caller.
    async fn client_ids(
        &self,
        after: Option<&ClientId>,
        limit: u32,
    ) -> Result<Vec<ClientId>, StoreError>;

    /// Whether the database answers, and holds the schema that this program writes.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Lets go of the database. Nothing works after it.
    async fn close(&self);
}
