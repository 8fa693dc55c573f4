//! Recording: from messages to rows, a batch at a time.
//!
//! Group commit: a writer that is free takes what has gathered and writes it. When quiet that is
//! one message at once, in a storm it is full batches; there is no timer to tune. Writers run side
//! by side over disjoint sets of clients. The steps of a batch are in `batch`, what a client's
//! messages end in is in `apply`.

mod batch;
mod bisect;
mod dead_letter_replay;
mod handshake_errors;
mod inventory_step;
mod losses;
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
use crate::tenant::TenantLookup;

pub use dead_letter_replay::replay_dead_letters;
pub use handshake_errors::{HandshakeErrorReceiver, HandshakeErrorSender};
pub use losses::MassLossDetector;
pub use startup_sweep::startup_sweep;

pub use crate::store::{DeadLetterLimits, PartitionLease, QueuePosition, QueueTopic};

use writer::{Job, WriterStatus};

/// Something that may change who is connected.
#[derive(Debug, Clone)]
pub enum RecorderInput {
    /// A client said something.
    Message {
        /// Which of whose topics it came on.
        topic: ClientTopic,
        /// The message.
        message: InboundMessage,
        /// Where it stood in the queue of presence, if it came from there.
        place: Option<QueuePosition>,
        /// It came by a way of its own, and may have overtaken other messages of its client.
        late: bool,
    },
    /// A message on a topic that is nobody's.
    UnknownTopic {
        /// The message.
        message: InboundMessage,
    },
    /// A client's last link to the embedded broker has ended, whatever it said before.
    ConnectionClosed {
        /// Whose.
        client: ClientId,
    },
}

impl RecorderInput {
    /// A message that comes in the order in which its client sent it, straight from a broker.
    #[must_use]
    pub fn message(topic: ClientTopic, message: InboundMessage) -> Self {
        Self::Message {
            topic,
            message,
            place: None,
            late: false,
        }
    }

    /// Whom it is about.
    #[must_use]
    pub fn client(&self) -> Option<&ClientId> {
        match self {
            Self::Message { topic, .. } => Some(&topic.client),
            Self::ConnectionClosed { client } => Some(client),
            Self::UnknownTopic { .. } => None,
        }
    }

    /// The message, if it is one.
    #[must_use]
    pub fn received(&self) -> Option<&InboundMessage> {
        match self {
            Self::Message { message, .. } | Self::UnknownTopic { message } => Some(message),
            Self::ConnectionClosed { .. } => None,
        }
    }

    /// What it takes in memory, roughly.
    fn bytes(&self) -> usize {
        self.received()
            .map_or(0, |message| message.payload.len() + message.topic.len())
    }
}

/// While more than this waits for the database, sources let nobody new in. What is connected already
/// may still add a message, a will and an end each, of bounded size: so memory stays bounded.
const MAX_QUEUED_MESSAGES: usize = 20_000;
const MAX_QUEUED_BYTES: usize = 64 * 1024 * 1024;

/// How to record.
pub struct RecorderConfig {
    /// Most messages in one transaction.
    pub max_batch_size: usize,
    /// How long a batch waits for tenants.
    pub tenant_lookup_timeout: Duration,
    /// How far before the recorded `sent` an online is old.
    pub stale_online_window: Duration,
    /// Writers side by side.
    pub writers: usize,
    /// How many dead letters are kept.
    pub letters: DeadLetterLimits,
}

/// What recording works with.
pub struct RecorderDeps {
    /// Where rows go.
    pub store: Arc<dyn Store>,
    /// To whom clients belong.
    pub tenants: Arc<dyn TenantLookup>,
    /// Whether many lose their tenant at once.
    pub losses: MassLossDetector,
    /// Who is told of hosts, if anybody.
    pub inventory: Option<InventoryReporter>,
    /// Who registers catalog proxies, if anybody.
    pub sources: Option<SourceRegistrar>,
    /// Where clients are told that their handshake was not taken.
    pub refusals: HandshakeErrorSender,
    /// Now.
    pub clock: Arc<dyn Clock>,
    /// How.
    pub settings: RecorderConfig,
}

/// Takes events in, and says when each is durable. A clone is the same recorder.
#[derive(Clone)]
pub struct Recorder {
    store: Arc<dyn Store>,
    lanes: Arc<[mpsc::UnboundedSender<Job>]>,
    standing: Arc<WriterStatus>,
}

/// The recorder stopped before the event was durable, or another owns its partition by now: it must
/// not be acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not recorded")]
pub struct NotRecorded;

/// Resolves when the event is durable.
#[derive(Debug)]
pub struct Receipt(oneshot::Receiver<()>);

impl Receipt {
    /// Waits until it is durable.
    ///
    /// # Errors
    /// When it will never be.
    pub async fn durable(self) -> Result<(), NotRecorded> {
        self.0.await.map_err(|_| NotRecorded)
    }
}

impl Recorder {
    /// Starts the writers. They end when `stopper` asks, after what they had taken in.
    #[must_use]
    pub fn start(parts: RecorderDeps, stopper: &TaskGroup) -> Self {
        let standing = Arc::new(WriterStatus::default());
        let writers = parts.settings.writers.max(1);
        let parts = Arc::new(parts);
        let lanes = (0..writers)
            .map(|_| {
                // Unbounded, and bounded by whom it serves: a source hands over a client's next
                // message only when the one before is durable.
                let (sender, jobs) = mpsc::unbounded_channel();
                let writer = writer::run(parts.clone(), standing.clone(), jobs, stopper.clone());
                stopper.spawn(writer);
                sender
            })
            .collect();
        Self {
            store: parts.store.clone(),
            lanes,
            standing,
        }
    }

    /// Hands an event over. Events of one client take effect in the order of these calls.
    #[must_use]
    pub fn submit(&self, event: RecorderInput) -> Receipt {
        let mut hasher = DefaultHasher::new();
        event.client().hash(&mut hasher);
        self.hand_over(hasher.finish(), vec![event], None)
    }

    /// Hands events over that came in this order from one partition of the queue. They are
    /// recorded together or not at all: not, if the partition has another owner by then.
    #[must_use]
    pub fn submit_partition(&self, fence: PartitionLease, events: Vec<RecorderInput>) -> Receipt {
        self.hand_over(
            u64::from(fence.partition.unsigned_abs()),
            events,
            Some(fence),
        )
    }

    fn hand_over(
        &self,
        spread: u64,
        events: Vec<RecorderInput>,
        fence: Option<PartitionLease>,
    ) -> Receipt {
        let (done, receipt) = oneshot::channel();
        let lane = usize::try_from(spread % self.lanes.len() as u64).unwrap_or(0);
        let job = Job::new(events, fence, done);
        self.standing.add_waiting(&job);
        // If the writer is gone, `done` is dropped with the job and the receipt says so.
        let _ = self.lanes[lane].send(job);
        Receipt(receipt)
    }

    /// Takes partitions of the queue over, for [`Recorder::submit_partition`]: what their former owner
    /// still holds is not recorded any more.
    ///
    /// # Errors
    /// When the database does not answer.
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

    /// Whether so much is waiting that no new client should be let in.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let (events, bytes) = self.standing.waiting();
        events >= MAX_QUEUED_MESSAGES || bytes >= MAX_QUEUED_BYTES
    }

    /// For readiness: is the database taking batches?
    ///
    /// # Errors
    /// When batches are held, with why.
    pub fn standing(&self) -> HealthResult {
        if self.lanes.iter().any(mpsc::UnboundedSender::is_closed) {
            return Err("a writer has ended".to_owned());
        }
        self.standing.verdict()
    }

    /// Resolves when a writer has ended: because it was asked to, or because of a bug of ours.
    pub async fn ended(&self) {
        let lanes = self.lanes.iter().map(|lane| lane.closed().boxed());
        futures::future::select_all(lanes).await;
    }
}
