//! Recorder: turns client messages into database rows, one batch per transaction.
//!
//! Group commit without a timer: an idle writer takes all queued messages and writes them in one
//! transaction. Under low load a batch is a single message; under high load batches are full.
//! Writers run concurrently, and all messages of one client go to the same writer. `batch` contains
//! the steps of a batch. `presence` contains the rules that decide whether a client is connected.

mod batch;
mod bisect;
mod dead_letter_replay;
mod handshake_errors;
mod inventory_step;
mod presence;
mod startup_sweep;
mod writer;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::{mpsc, oneshot};

use crate::domain::{ClientId, Clock};
use crate::integrations::inventory::reporter::InventoryReporter;
use crate::integrations::sources::SourceRegistrar;
use crate::protocol::{ClientTopic, InboundMessage};
use crate::shutdown::TaskGroup;
use crate::store::{Store, StoreError};
use crate::telemetry::health::HealthResult;
use crate::tenant::{MassLossDetector, TenantLookup};

pub use dead_letter_replay::replay_dead_letters;
pub use handshake_errors::{HandshakeErrorReceiver, HandshakeErrorSender};
pub use startup_sweep::startup_sweep;

pub use crate::store::{DeadLetterLimits, PartitionLease, QueuePosition, QueueTopic};

use writer::{Job, WriterStatus};

/// A message or a broker event that the recorder processes.
#[derive(Debug, Clone)]
pub enum RecorderInput {
    /// A client's message.
    Message {
        /// The parsed MQTT topic, which names the client.
        topic: ClientTopic,
        /// The message.
        message: InboundMessage,
        /// Position in the Kafka ingress topic. `None` if the message did not come from there.
        position: Option<QueuePosition>,
        /// Whether the message came through the Kafka answers topic, so it may be out of order with
        /// the client's messages in the ingress topic.
        unordered: bool,
    },
    /// A message on a topic that is not a client topic.
    UnknownTopic {
        /// The message.
        message: InboundMessage,
    },
    /// The client's last connection to the embedded broker was closed.
    ConnectionClosed {
        /// The client.
        client: ClientId,
    },
}

impl RecorderInput {
    /// Creates the input for a message that did not pass through Kafka, so it is in the order in
    /// which the client sent it.
    #[must_use]
    pub fn ordered_message(topic: ClientTopic, message: InboundMessage) -> Self {
        Self::Message {
            topic,
            message,
            position: None,
            unordered: false,
        }
    }

    /// The client, unless the topic is unknown.
    #[must_use]
    pub fn client(&self) -> Option<&ClientId> {
        match self {
            Self::Message { topic, .. } => Some(&topic.client),
            Self::ConnectionClosed { client } => Some(client),
            Self::UnknownTopic { .. } => None,
        }
    }

    /// The message, unless the input is a closed connection.
    #[must_use]
    pub fn inbound_message(&self) -> Option<&InboundMessage> {
        match self {
            Self::Message { message, .. } | Self::UnknownTopic { message } => Some(message),
            Self::ConnectionClosed { .. } => None,
        }
    }

    /// Approximate memory use in bytes.
    fn size_bytes(&self) -> usize {
        self.inbound_message()
            .map_or(0, |message| message.payload.len() + message.topic.len())
    }
}

/// While at least this many messages are queued, [`Recorder::is_overloaded`] returns true and the
/// embedded broker rejects new connections. Memory stays bounded, because each client that is
/// already connected can add only one message, its last will and its closed connection.
const MAX_QUEUED_MESSAGES: usize = 20_000;
/// The same limit in bytes.
const MAX_QUEUED_BYTES: usize = 64 * 1024 * 1024;

/// Settings of the recorder.
pub struct RecorderConfig {
    /// Maximum number of messages in one transaction.
    pub max_batch_size: usize,
    /// Maximum time that a batch waits for tenant lookups.
    pub tenant_lookup_timeout: Duration,
    /// Maximum time by which the `sent` of a stale online message precedes the stored `sent`.
    pub stale_online_window: Duration,
    /// Number of concurrent writers.
    pub writers: usize,
    /// Maximum number of stored dead letters.
    pub dead_letter_limits: DeadLetterLimits,
}

/// Dependencies of the recorder.
pub struct RecorderDeps {
    /// The database.
    pub store: Arc<dyn Store>,
    /// Looks up the organization of a client.
    pub tenant_lookup: Arc<dyn TenantLookup>,
    /// Suppresses "not found" results when too many clients would lose their tenant.
    pub mass_loss: MassLossDetector,
    /// Reports connected hosts to inventory, if configured.
    pub inventory: Option<InventoryReporter>,
    /// Registers catalog proxies with the sources service, if configured.
    pub source_registrar: Option<SourceRegistrar>,
    /// Sends handshake errors to clients.
    pub handshake_errors: HandshakeErrorSender,
    /// Source of the current time.
    pub clock: Arc<dyn Clock>,
    /// Settings.
    pub config: RecorderConfig,
}

/// Handle of the running recorder. Clones share the same writers.
#[derive(Clone)]
pub struct Recorder {
    store: Arc<dyn Store>,
    writer_queues: Arc<[mpsc::UnboundedSender<Job>]>,
    status: Arc<WriterStatus>,
}

/// The input was not written: the recorder stopped, or the Kafka partition has a new owner. The
/// caller must not acknowledge the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not recorded")]
pub struct NotRecorded;

/// Receipt for submitted input, which resolves when the input is durable.
#[derive(Debug)]
pub struct Receipt(oneshot::Receiver<()>);

impl Receipt {
    /// Waits until the input is durable.
    ///
    /// # Errors
    /// [`NotRecorded`] if the input was not written.
    pub async fn durable(self) -> Result<(), NotRecorded> {
        self.0.await.map_err(|_| NotRecorded)
    }
}

impl Recorder {
    /// Starts the writers. When `tasks` is cancelled, they write what is queued and exit.
    #[must_use]
    pub fn start(deps: RecorderDeps, tasks: &TaskGroup) -> Self {
        let status = Arc::new(WriterStatus::default());
        let writers = deps.config.writers.max(1);
        let deps = Arc::new(deps);
        let writer_queues = (0..writers)
            .map(|_| {
                // An unbounded channel is safe, because callers bound what they submit: the
                // embedded broker submits a client's next message only after the previous one is
                // durable, and the other callers limit their messages in flight.
                let (sender, jobs) = mpsc::unbounded_channel();
                tasks.spawn(writer::run(
                    deps.clone(),
                    status.clone(),
                    jobs,
                    tasks.clone(),
                ));
                sender
            })
            .collect();
        Self {
            store: deps.store.clone(),
            writer_queues,
            status,
        }
    }

    /// Queues one input. Inputs of the same client are applied in the order of the calls.
    #[must_use]
    pub fn submit(&self, input: RecorderInput) -> Receipt {
        let mut hasher = DefaultHasher::new();
        input.client().hash(&mut hasher);
        self.enqueue(hasher.finish(), vec![input], None)
    }

    /// Queues consecutive messages of one Kafka partition. They are committed together, or not at
    /// all if the partition has a new owner by then.
    #[must_use]
    pub fn submit_partition(&self, lease: PartitionLease, inputs: Vec<RecorderInput>) -> Receipt {
        self.enqueue(
            u64::from(lease.partition.unsigned_abs()),
            inputs,
            Some(lease),
        )
    }

    /// Inputs with the same `shard_key` go to the same writer.
    fn enqueue(
        &self,
        shard_key: u64,
        inputs: Vec<RecorderInput>,
        lease: Option<PartitionLease>,
    ) -> Receipt {
        let (committed, receipt) = oneshot::channel();
        let writer = usize::try_from(shard_key % self.writer_queues.len() as u64).unwrap_or(0);
        let job = Job::new(inputs, lease, committed);
        self.status.add_queued(&job);
        // If the writer has exited, the job is dropped with `committed`, and the receipt fails.
        let _ = self.writer_queues[writer].send(job);
        Receipt(receipt)
    }

    /// Acquires partitions of a Kafka topic for [`Recorder::submit_partition`]. From then on,
    /// writes of the previous owner are fenced.
    ///
    /// # Errors
    /// When the database is unavailable.
    pub async fn acquire_partitions(
        &self,
        queue: QueueTopic,
        partitions: &[i32],
        owner: &str,
    ) -> Result<Vec<PartitionLease>, StoreError> {
        self.store
            .acquire_partitions(queue, partitions, owner)
            .await
    }

    /// Whether so many messages are queued that the broker should reject new connections.
    #[must_use]
    pub fn is_overloaded(&self) -> bool {
        let (messages, bytes) = self.status.queued();
        messages >= MAX_QUEUED_MESSAGES || bytes >= MAX_QUEUED_BYTES
    }

    /// Health for the readiness endpoint.
    ///
    /// # Errors
    /// When a writer has exited or is retrying a batch.
    pub fn health(&self) -> HealthResult {
        if self
            .writer_queues
            .iter()
            .any(mpsc::UnboundedSender::is_closed)
        {
            return Err("a database writer has exited".to_owned());
        }
        self.status.health()
    }

    /// Resolves when a writer exits: after cancellation, or unexpectedly because of a bug.
    pub async fn writer_exited(&self) {
        let exits = self
            .writer_queues
            .iter()
            .map(|queue| queue.closed().boxed());
        futures::future::select_all(exits).await;
    }
}
