//! Recorder: turns client messages into database rows, one batch per transaction.
//!
//! The recorder uses group commit without a timer. An idle writer takes all queued messages and
//! writes them in one transaction. Under low load, a batch contains a single message. Under high
//! load, batches are full. Writers run concurrently, and all messages of one client go to the same
//! writer.
//!
//! `batch` contains the steps of a batch. `presence` contains the rules that decide whether a
//! client is connected. `inventory_reports` sends the reports of committed hosts.

mod answers;
mod batch;
mod bisect;
mod dead_letter_replay;
mod decoded_job;
mod handshake_errors;
mod host_reporting;
mod inventory_reports;
pub mod metrics;
mod prepared_input;
mod presence;
mod rejections;
mod settings;
mod startup_sweep;
mod transitions;
mod writer;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use domain::{ClientId, Clock, OfflineReason};
use integrations::inventory::reporter::InventoryReporter;
use integrations::sources::SourceRegistrar;
use protocol::{ClientTopic, InboundMessage};
use service::health::HealthResult;
use service::{ByteBudget, TaskGroup};
use store::{PresenceRepository, StoreError};
use tenant::{MassLossDetector, TenantLookup};

pub use dead_letter_replay::replay_dead_letters;
pub use handshake_errors::{HandshakeErrorReceiver, HandshakeErrorSender};
pub use prepared_input::PreparedInput;
pub use settings::RecordSettings;
pub use startup_sweep::run_startup_sweep;
pub use writer::Writer;

pub use store::{DeadLetterLimits, PartitionLease, QueuePosition, QueueTopic};

use inventory_reports::InventoryReporting;
use writer::{Job, WriterStatus};

/// A message or a broker event that the recorder processes.
#[derive(Debug, Clone)]
pub enum RecorderInput {
    /// A client's message.
    Message {
        /// The parsed MQTT topic, which contains the client id.
        topic: ClientTopic,
        /// The message that the client published.
        message: InboundMessage,
        /// Position of the message in the Kafka ingress topic or slow topic. `None` if the message was
        /// not read from one of these topics.
        position: Option<QueuePosition>,
        /// Whether the message was read from the Kafka answers topic, or is a response or a heartbeat
        /// from the slow topic. Such a message may be out of order with the client's messages in the
        /// ingress topic.
        from_answers_topic: bool,
    },
    /// A message on a topic that is not a client topic.
    UnknownTopic {
        /// The message with the unknown topic.
        message: InboundMessage,
    },
    /// The client's last connection to the embedded broker was closed.
    ConnectionClosed {
        /// The client whose connection was closed.
        client: ClientId,
        /// How the connection ended.
        reason: OfflineReason,
    },
}

impl RecorderInput {
    /// Creates the input for a message that did not pass through Kafka.
    #[must_use]
    pub fn non_kafka_message(topic: ClientTopic, message: InboundMessage) -> Self {
        Self::Message {
            topic,
            message,
            position: None,
            from_answers_topic: false,
        }
    }

    /// Returns the client. Returns `None` if the topic is unknown.
    #[must_use]
    pub fn client(&self) -> Option<&ClientId> {
        match self {
            Self::Message { topic, .. } => Some(&topic.client),
            Self::ConnectionClosed { client, .. } => Some(client),
            Self::UnknownTopic { .. } => None,
        }
    }

    /// Returns the message. Returns `None` if the input is a closed connection.
    #[must_use]
    pub fn inbound_message(&self) -> Option<&InboundMessage> {
        match self {
            Self::Message { message, .. } | Self::UnknownTopic { message } => Some(message),
            Self::ConnectionClosed { .. } => None,
        }
    }

    /// Returns the approximate memory use of the input in bytes.
    fn size_bytes(&self) -> usize {
        self.inbound_message()
            .map_or(0, |message| message.payload.len() + message.topic.len())
    }
}

/// While at least this many messages are queued, [`Recorder::is_overloaded`] returns true and the
/// embedded broker rejects new connections.
///
/// Clients that are already connected can still add inputs. Memory stays bounded, because each of
/// these clients can add at most one message, its last will and its closed connection.
const MAX_QUEUED_MESSAGES: usize = 20_000;
/// While at least this many bytes are queued, [`Recorder::is_overloaded`] returns true and the
/// embedded broker rejects new connections.
const MAX_QUEUED_BYTES: usize = 64 * 1024 * 1024;

/// Name of the task that runs the writer for the slow topic.
const SLOW_WRITER: &str = "recorder_writer_slow";

/// Settings of the recorder.
pub struct RecorderConfig {
    /// Maximum number of messages in one transaction.
    pub max_batch_size: usize,
    /// Maximum time that a batch waits for tenant lookups.
    pub tenant_lookup_timeout: Duration,
    /// An online message is ignored as stale if its `sent` is earlier than the stored `sent` by at
    /// most this duration.
    pub stale_online_window: Duration,
    /// Minimum time between two writes of the time at which a client was last seen, if nothing else of its
    /// row changes.
    pub last_seen_interval: Duration,
    /// Number of concurrent writers. With more than one, there is an additional writer for the slow
    /// topic.
    pub writers: usize,
    /// Maximum number of stored dead letters.
    pub dead_letter_limits: DeadLetterLimits,
}

/// Dependencies of the recorder.
pub struct RecorderDeps {
    /// Stored presence of the clients.
    pub presence: Arc<dyn PresenceRepository>,
    /// Looks up the organization of a client.
    pub tenant_lookup: Arc<dyn TenantLookup>,
    /// Suppresses "not found" results if they would clear the tenant of too many clients at once.
    pub mass_loss_detector: MassLossDetector,
    /// Reports connected hosts to inventory. `None` if inventory is not configured.
    pub inventory_reporter: Option<InventoryReporter>,
    /// Registers catalog proxies with the sources service. `None` if the service is not configured.
    pub source_registrar: Option<SourceRegistrar>,
    /// Sends handshake errors to clients.
    pub handshake_error_sender: HandshakeErrorSender,
    /// Source of the current time.
    pub clock: Arc<dyn Clock>,
    /// Limits the memory of all queued messages of the process. The recorder reserves the memory of
    /// an input until the input is durable.
    pub message_budget: ByteBudget,
    /// Settings of the recorder.
    pub config: RecorderConfig,
}

/// Handle of the running recorder. Clones share the same writers.
#[derive(Clone)]
pub struct Recorder {
    presence: Arc<dyn PresenceRepository>,
    writer_queues: Arc<[mpsc::UnboundedSender<Job>]>,
    /// Queue of the writer for the slow topic. `None` if the database allows only one writer.
    slow_writer_queue: Option<mpsc::UnboundedSender<Job>>,
    status: Arc<WriterStatus>,
    message_budget: ByteBudget,
}

/// Error: the input was not written, because the recorder stopped or the Kafka partition has a new
/// owner. The caller must not acknowledge the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not recorded")]
pub struct NotRecorded;

/// Receipt for a submitted input. The caller uses the receipt to wait until the input is durable.
#[derive(Debug)]
pub struct Receipt(oneshot::Receiver<()>);

impl Receipt {
    /// Waits until the input is durable.
    ///
    /// # Errors
    /// [`NotRecorded`] if the input was not written.
    pub async fn wait_until_durable(self) -> Result<(), NotRecorded> {
        self.0.await.map_err(|_| NotRecorded)
    }
}

impl Recorder {
    /// Creates a recorder and its writers. The recorder writes inputs while the writers run.
    #[must_use]
    pub fn new(deps: RecorderDeps) -> (Self, Vec<Writer>) {
        let status = Arc::new(WriterStatus::default());
        let inventory_reporting = deps.inventory_reporter.clone().map(InventoryReporting::new);
        let deps = Arc::new(deps);
        let new_writer = |task_name: String| {
            // The channel needs no bound, because each caller limits its inputs in flight. The
            // embedded broker submits a client's next message only after the previous message
            // is durable. The other callers limit their total number of messages in flight.
            let (sender, jobs) = mpsc::unbounded_channel();
            let reporting = inventory_reporting.as_ref();
            let writer = Writer::new(task_name, deps.clone(), status.clone(), reporting, jobs);
            (sender, writer)
        };
        let (writer_queues, mut writers): (Vec<_>, Vec<_>) = (1..=deps.config.writers.max(1))
            .map(|number| new_writer(format!("recorder_writer_{number}")))
            .unzip();
        // Clients that are over their budget have a writer of their own, so that other clients do not
        // wait for their large batches.
        let slow_writer = (deps.config.writers > 1).then(|| new_writer(SLOW_WRITER.to_owned()));
        let slow_writer_queue = slow_writer.map(|(queue, writer)| {
            writers.push(writer);
            queue
        });
        let recorder = Self {
            presence: deps.presence.clone(),
            writer_queues: writer_queues.into(),
            slow_writer_queue,
            status,
            message_budget: deps.message_budget.clone(),
        };
        (recorder, writers)
    }

    /// Creates a recorder and runs its writers as essential tasks of `tasks`. When `tasks` is
    /// cancelled, the writers write all queued inputs and exit.
    #[must_use]
    pub fn start(deps: RecorderDeps, tasks: &TaskGroup) -> Self {
        let (recorder, writers) = Self::new(deps);
        for writer in writers {
            tasks.spawn_essential(writer.task_name(), writer.run(tasks.clone()));
        }
        recorder
    }

    /// Queues one input. Inputs of one client are applied in the order in which they were
    /// submitted.
    #[must_use]
    pub fn submit(&self, input: RecorderInput) -> Receipt {
        self.submit_prepared(self.prepare(input))
    }

    /// Queues one prepared input. Inputs of one client are applied in the order in which they were
    /// submitted.
    #[must_use]
    pub fn submit_prepared(&self, prepared: PreparedInput) -> Receipt {
        let mut hasher = DefaultHasher::new();
        prepared.input.client().hash(&mut hasher);
        self.enqueue(self.writer_queue(hasher.finish()), vec![prepared], None)
    }

    /// Prepares an input for [`Recorder::submit_prepared`] or [`Recorder::submit_from_partition`]:
    /// reserves its memory, and decodes a large response and frees its payload.
    #[must_use]
    pub fn prepare(&self, input: RecorderInput) -> PreparedInput {
        PreparedInput::new(input, &self.message_budget)
    }

    /// Returns the budget in which the recorder reserves the memory of its inputs.
    #[must_use]
    pub fn message_budget(&self) -> &ByteBudget {
        &self.message_budget
    }

    /// Queues consecutive messages of one Kafka partition. The messages are committed in one
    /// transaction. If the partition gets a new owner before the commit, none of the messages
    /// is written.
    #[must_use]
    pub fn submit_from_partition(
        &self,
        lease: PartitionLease,
        inputs: Vec<PreparedInput>,
    ) -> Receipt {
        let queue = match &self.slow_writer_queue {
            Some(queue) if lease.queue == QueueTopic::Slow => queue,
            _ => self.writer_queue(u64::from(lease.partition.unsigned_abs())),
        };
        self.enqueue(queue, inputs, Some(lease))
    }

    /// Returns the queue of a writer. Inputs with the same `shard_key` go to the same writer.
    fn writer_queue(&self, shard_key: u64) -> &mpsc::UnboundedSender<Job> {
        let writer_index =
            usize::try_from(shard_key % self.writer_queues.len() as u64).unwrap_or(0);
        &self.writer_queues[writer_index]
    }

    /// Queues inputs for one transaction.
    fn enqueue(
        &self,
        queue: &mpsc::UnboundedSender<Job>,
        inputs: Vec<PreparedInput>,
        lease: Option<PartitionLease>,
    ) -> Receipt {
        let (receipt_sender, receipt) = oneshot::channel();
        let job = Job::new(inputs, lease, receipt_sender);
        self.status.add_to_queue_size(&job);
        // If the writer has exited, the job and its `receipt_sender` are dropped. The caller's
        // receipt then fails.
        let _ = queue.send(job);
        Receipt(receipt)
    }

    /// Acquires partitions of a Kafka topic for [`Recorder::submit_from_partition`]. The database
    /// then rejects further writes of the previous owner.
    ///
    /// # Errors
    /// When the database is unavailable.
    pub async fn acquire_partitions(
        &self,
        queue_topic: QueueTopic,
        partitions: &[i32],
        owner: &str,
    ) -> Result<Vec<PartitionLease>, StoreError> {
        self.presence
            .acquire_partitions(queue_topic, partitions, owner)
            .await
    }

    /// Returns whether so many messages are queued that the broker should reject new connections.
    #[must_use]
    pub fn is_overloaded(&self) -> bool {
        let (messages, bytes) = self.status.queued_messages_and_bytes();
        messages >= MAX_QUEUED_MESSAGES || bytes >= MAX_QUEUED_BYTES
    }

    /// Returns the recorder's health for the readiness endpoint.
    ///
    /// # Errors
    /// When a writer has exited, is retrying a batch, or waits too long for the database.
    pub fn health(&self) -> HealthResult {
        if self
            .writer_queues
            .iter()
            .chain(&self.slow_writer_queue)
            .any(mpsc::UnboundedSender::is_closed)
        {
            return Err("a database writer has exited".to_owned());
        }
        self.status.health()
    }
}
