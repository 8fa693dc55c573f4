//! The database as the rest of the program sees it: one repository trait per concern, and the types
//! of its rows.
//!
//! | module | repository | used by |
//! |---|---|---|
//! | `presence` | [`PresenceRepository`] | recorder |
//! | `ingest_epochs` | [`IngestEpochRepository`] | ingest |
//! | `connections` | [`ConnectionRepository`] | API |
//! | `clients` | [`ClientRepository`] | API, retention job |
//! | `lookup_queue` | [`LookupQueueRepository`] | tenant lookup jobs, operator commands |
//! | `dead_letters` | [`DeadLetterRepository`] | recorder, retention job, operator commands |
//! | `maintenance` | [`MaintenanceRepository`] | runtime, periodic jobs, operator commands |
//! | `liveness` | [`LivenessRepository`] | liveness sweep, Kafka readers |
//! | `events` | [`EventRepository`] | sequencer, event streams, forwarder, retention job |
//! | `idempotency` | [`IdempotencyRepository`] | API, retention job |
//! | `messages` | [`MessageRepository`] | API, delivery, retention job |
//!
//! [`sql`] implements the repositories once for all SQL databases. `store-sqlite` and
//! `store-postgres` contain the drivers, the schemas and the statements that differ. Both backends
//! pass the same contract tests (`crates/store-contract`).
//!
//! To write another kind of row in the transaction of a batch, start at [`PresenceBatch`]. The
//! compiler then names each function that must handle it.

mod batch;
mod bisect;
mod clients;
mod connections;
mod dead_letter_limit;
mod dead_letters;
mod error;
mod events;
mod history;
mod idempotency;
mod ingest_epochs;
mod liveness;
mod lookup_queue;
mod maintenance;
mod messages;
pub mod metrics;
mod page;
mod partitions;
mod presence;
mod settings;
pub mod sql;

use std::sync::Arc;

pub use batch::{
    ConnectionEnd, ConnectionUpsert, DeliveredReport, HeartbeatUpdate, LastSeen, PresenceBatch,
    PresenceColumns, ReplacedRow, SplitBatch, TenantChange,
};
pub use bisect::{PartsObserver, RejectedPart, record_batch_in_parts};
pub use clients::{ClientRecord, ClientRepository, ClientStatus, HistoryEntry, TrimmedHistory};
pub use connections::{ConnectionRepository, ConnectionVisitor};
pub use dead_letter_limit::enforce_dead_letter_limit;
pub use dead_letters::{
    DeadLetter, DeadLetterCount, DeadLetterFilter, DeadLetterLimits, DeadLetterRepository,
    StoredDeadLetter,
};
pub use error::{Result, RowRejection, StoreError};
pub use events::{EventRepository, MAX_OUTBOX_COUNT, StoredEvent};
pub use history::{
    ContentHashes, HistoryRow, NewEvent, Transition, event_data, log_transition, log_transitions,
};
pub use idempotency::{
    IdempotencyKey, IdempotencyRepository, IdempotentRequest, StoredKey, StoredResponse,
};
pub use ingest_epochs::{IngestEpoch, IngestEpochRepository};
pub use liveness::{
    ConnectionChunk, ExpiringConnection, IngestSession, LivenessRepository, RecordingProgress,
    SweepState, WatchedConnection,
};
pub use lookup_queue::{
    ClaimedConnection, ClientDetails, ClientDetailsVisitor, LookupOutcome, LookupQueueRepository,
    LookupReason, LookupResult, TenantlessClient, TenantlessCounts,
};
pub use maintenance::{MaintenanceRepository, OrgCount};
pub use messages::{
    AnswerContent, CancelOutcome, MAX_ANSWER_BYTES, MessageAnswer, MessageFilter, MessagePage,
    MessageRepository, NewMessage, SendOutcome, TrackedMessage,
};
pub use page::{
    ClientPage, ConnectionFilter, ConnectionPage, MAX_FILTERED_COUNT, PageRequest, PageStart,
};
pub use partitions::{PartitionLease, QueuePosition, QueueTopic, ReceivedAt};
pub use presence::{
    PresenceRepository, RowVersion, StoredConnection, StoredDisconnect, StoredState, WriteOutcome,
};
pub use settings::{DeadLetterSettings, EventSettings, MessageSettings};

/// Maximum number of rows that one maintenance statement or operator command changes. A larger
/// number of rows is processed by several calls, so no statement exceeds the statement timeout of the
/// database, and other writers do not wait long.
pub const MAINTENANCE_CHUNK_ROWS: u32 = 1000;

/// The repositories of one open database. Each consumer receives only the repositories that it
/// uses.
#[derive(Clone)]
pub struct Repositories {
    /// Presence of clients.
    pub presence: Arc<dyn PresenceRepository>,
    /// Epochs of the connections to an external broker.
    pub ingest_epochs: Arc<dyn IngestEpochRepository>,
    /// Connections of connected clients.
    pub connections: Arc<dyn ConnectionRepository>,
    /// What is stored about each client.
    pub clients: Arc<dyn ClientRepository>,
    /// Rows that are due for a tenant lookup.
    pub lookup_queue: Arc<dyn LookupQueueRepository>,
    /// Messages that can never be processed.
    pub dead_letters: Arc<dyn DeadLetterRepository>,
    /// Operation of the database.
    pub maintenance: Arc<dyn MaintenanceRepository>,
    /// Events of organizations.
    pub events: Arc<dyn EventRepository>,
    /// Liveness sweep.
    pub liveness: Arc<dyn LivenessRepository>,
    /// Tracked messages.
    pub messages: Arc<dyn MessageRepository>,
    /// Idempotency keys.
    pub idempotency: Arc<dyn IdempotencyRepository>,
}

impl Repositories {
    /// Creates the repositories of an open database.
    #[must_use]
    pub fn new<B>(backend: B) -> Self
    where
        B: PresenceRepository
            + IngestEpochRepository
            + ConnectionRepository
            + ClientRepository
            + LookupQueueRepository
            + DeadLetterRepository
            + MaintenanceRepository
            + EventRepository
            + LivenessRepository
            + MessageRepository
            + IdempotencyRepository,
    {
        let backend = Arc::new(backend);
        Self {
            presence: backend.clone(),
            ingest_epochs: backend.clone(),
            connections: backend.clone(),
            clients: backend.clone(),
            lookup_queue: backend.clone(),
            dead_letters: backend.clone(),
            maintenance: backend.clone(),
            events: backend.clone(),
            liveness: backend.clone(),
            messages: backend.clone(),
            idempotency: backend,
        }
    }
}
