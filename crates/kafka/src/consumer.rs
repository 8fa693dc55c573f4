//! Consumes a topic. The caller stores the offset of a message after it has written the message to
//! the database.
//!
//! The consumer completes each rebalance itself: it determines the start offsets before it assigns
//! the partitions, and commits the stored offsets before it gives partitions up. Once per second, it
//! checks whether the topic is still the same topic, and then commits the stored offsets
//! (docs/decisions/014-topic-identity.md).
//!
//! If the topic was recreated, a position is after the end of its partition, a seek fails, or
//! librdkafka reports a fatal error, the consumer replaces its librdkafka client. The caller receives
//! the same events as in a rebalance. The new client reads from the last committed offsets that are
//! valid.

mod callbacks;
mod offsets;
mod progress;
mod state;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use rdkafka::Timestamp as KafkaTimestamp;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::error::KafkaError as ClientError;
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use self::callbacks::{ConsumerCallbacks, RebalanceEvent};
use self::offsets::{CheckOutcome, Offsets, StartOffsets};
use self::progress::Progress;
pub use self::state::ConsumerHealthCheck;
use self::state::{ConsumerState, error_hint};
use super::KafkaSettings;
use super::client_config::{self, KafkaError};
use crate::topic_identity::TopicId;
use domain::Timestamp;
use service::LogThrottle;

const SEEK_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval at which librdkafka reports statistics. The statistics contain the fetch positions.
const STATISTICS_INTERVAL_MS: &str = "5000";

/// Maximum size of the prefetched messages. librdkafka sends the next fetch request while the
/// prefetched messages are smaller.
const MAX_PREFETCHED_KBYTES: &str = "4096";
/// Maximum size of a response to a fetch request. Kafka sends a larger response only if the first
/// message batch is larger.
///
/// The limit is low, because it applies to compressed messages, and LZ4 compresses repetitive
/// messages by a factor of up to 255. librdkafka decompresses a whole response at once.
const MAX_FETCH_BYTES: &str = "131072";
/// Memory that a consumer typically needs for prefetched messages: the prefetched messages and one
/// decompressed response.
pub const CONSUMER_BUFFER_BYTES: usize = 8 * 1024 * 1024;

/// Interval at which the consumer checks the topic and commits offsets.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before a failed request for start offsets is sent again.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Delay before the client is replaced if the previous replacement was less than
/// [`MIN_TIME_BETWEEN_REPLACEMENTS`] ago.
const REPLACEMENT_DELAY: Duration = Duration::from_secs(5);
const MIN_TIME_BETWEEN_REPLACEMENTS: Duration = Duration::from_secs(30);

type Client = StreamConsumer<ConsumerCallbacks>;

/// Consumes one topic as a member of a consumer group.
pub struct Consumer {
    kafka: KafkaSettings,
    /// Called with the number of unprocessed messages in the assigned partitions.
    report_lag: fn(i64),
    client: Arc<Client>,
    state: Arc<ConsumerState>,
    rebalances: mpsc::UnboundedReceiver<RebalanceEvent>,
    /// A message that was received but not returned yet. Rebalance events are returned first.
    buffered_message: Option<KafkaMessage>,
    /// The operation that must finish before the next message is read.
    operation: Option<BoxFuture<'static, OperationOutcome>>,
    /// The offsets to which the consumer must seek before the next message is read.
    pending_seeks: Offsets,
    /// The running check of the topic, and the positions at its start. `None` if no check runs.
    check: Option<RunningCheck>,
    next_check_at: Instant,
    /// The id of the topic that the client has read. `None` until the first assignment of the
    /// client, or if the cluster does not support topic ids.
    topic_id: Option<TopicId>,
    progress: Progress,
    replaced_at: Option<Instant>,
    error_log_throttle: LogThrottle,
}

struct RunningCheck {
    outcome: BoxFuture<'static, Result<CheckOutcome, String>>,
    positions: Offsets,
    committing: Offsets,
}

/// Result of an operation that runs on another thread.
enum OperationOutcome {
    /// The partitions are assigned to the client, or the assignment failed.
    Assigned(Result<StartOffsets, String>),
    /// The client has given its partitions up.
    Unassigned,
    /// The client has changed its positions, or cannot change a position.
    Sought(Result<(), String>),
    /// A new client was created.
    ClientCreated(Arc<Client>, mpsc::UnboundedReceiver<RebalanceEvent>),
}

/// A message read from Kafka.
#[derive(Debug, Clone)]
pub struct KafkaMessage {
    /// Partition number.
    pub partition: i32,
    /// Offset in the partition.
    pub offset: i64,
    /// Payload of the message.
    pub payload: Bytes,
    /// Headers of the message. In values that are not valid UTF-8, invalid bytes are replaced.
    pub headers: HashMap<String, String>,
    /// Kafka's timestamp of the message: the time at which the message was produced or appended.
    pub timestamp: Option<Timestamp>,
}

/// A message or a rebalance.
#[derive(Debug)]
pub enum ConsumerEvent {
    /// A message was received.
    Message(KafkaMessage),
    /// These partitions were assigned to this consumer. The caller must discard unprocessed
    /// messages that it received from these partitions before this event.
    Assigned(Vec<i32>),
    /// These partitions were revoked from this consumer.
    Revoked(Vec<i32>),
}

impl Consumer {
    /// Creates a consumer and joins the consumer group. Connects in the background, and reconnects
    /// after each lost connection.
    ///
    /// # Errors
    /// When a setting is invalid.
    pub fn new(
        kafka: &KafkaSettings,
        topic: &str,
        group: &str,
        report_lag: fn(i64),
    ) -> Result<Self, KafkaError> {
        let (client, rebalances) = create_client(kafka, topic, group)?;
        Ok(Self {
            kafka: kafka.clone(),
            report_lag,
            state: Arc::new(ConsumerState::new(topic, group, client.clone())),
            client,
            rebalances,
            buffered_message: None,
            operation: None,
            pending_seeks: Offsets::new(),
            check: None,
            next_check_at: Instant::now(),
            topic_id: None,
            progress: Progress::default(),
            replaced_at: None,
            error_log_throttle: LogThrottle::new(),
        })
    }

    /// Waits for the next event. Returns a rebalance before the messages that followed the
    /// rebalance. This function is cancel safe: if the future is dropped, no event is discarded.
    pub async fn next(&mut self) -> ConsumerEvent {
        loop {
            if let Some(event) = self.finish_background_work().await {
                return event;
            }
            if let Ok(rebalance) = self.rebalances.try_recv() {
                if let Some(event) = self.on_rebalance(rebalance) {
                    return event;
                }
                continue;
            }
            if let Some(message) = self.buffered_message.take() {
                self.progress.on_returned(message.partition, message.offset);
                return ConsumerEvent::Message(message);
            }
            let is_checking = self.check.is_some();
            let may_check = !is_checking && !self.progress.is_empty();
            tokio::select! {
                biased;
                received = self.client.recv() => match received {
                    // The next iterations return rebalances that happened in the meantime, and then
                    // this message.
                    Ok(message) => self.buffered_message = Some(to_owned_message(&message)),
                    Err(error) => if let Some(event) = self.on_error(&error) {
                        return event;
                    },
                },
                Some(rebalance) = self.rebalances.recv() => {
                    if let Some(event) = self.on_rebalance(rebalance) {
                        return event;
                    }
                }
                outcome = wait_for_check(&mut self.check), if is_checking => {
                    if let Some(event) = self.on_check_finished(outcome) {
                        return event;
                    }
                }
                () = sleep_until(self.next_check_at), if may_check => self.start_check(),
            }
        }
    }

    /// Waits for the running operation and runs the pending seeks. Starts a check if it is due, and
    /// handles a finished check.
    async fn finish_background_work(&mut self) -> Option<ConsumerEvent> {
        if self.operation.is_none() && !self.pending_seeks.is_empty() {
            self.start_seeks();
        }
        if let Some(operation) = &mut self.operation {
            let outcome = operation.await;
            self.operation = None;
            if let Some(event) = self.on_operation_finished(outcome) {
                return Some(event);
            }
        }
        // While messages are available, `next` does not reach the branches for the check.
        if let Some(check) = &mut self.check {
            let outcome = (&mut check.outcome).now_or_never()?;
            return self.on_check_finished(outcome);
        }
        if !self.progress.is_empty() && Instant::now() >= self.next_check_at {
            self.start_check();
        }
        None
    }

    fn on_rebalance(&mut self, rebalance: RebalanceEvent) -> Option<ConsumerEvent> {
        match rebalance {
            RebalanceEvent::Assigned(partitions) => {
                let (client, state) = (self.client.clone(), self.state.clone());
                let topic_id = self.topic_id.clone();
                let assignment = assign_partitions(client, state, partitions, topic_id);
                self.operation = Some(assignment.map(OperationOutcome::Assigned).boxed());
                None
            }
            RebalanceEvent::Revoked(partitions) => {
                let (client, state) = (self.client.clone(), self.state.clone());
                let (topic_id, offsets) =
                    (self.topic_id.clone(), self.progress.offsets_to_commit());
                let unassignment = run_blocking(move || {
                    commit_before_unassign(&client, &state.topic, topic_id.as_ref(), &offsets);
                    if let Err(error) = client.unassign() {
                        tracing::warn!(%error, "failed to give up partitions");
                    }
                    OperationOutcome::Unassigned
                });
                self.discard_assignment();
                self.operation = Some(unassignment);
                Some(ConsumerEvent::Revoked(partitions))
            }
        }
    }

    fn on_operation_finished(&mut self, outcome: OperationOutcome) -> Option<ConsumerEvent> {
        match outcome {
            OperationOutcome::Assigned(Ok(StartOffsets { topic_id, offsets })) => {
                if !offsets.is_empty() {
                    self.topic_id = topic_id;
                }
                self.progress.start(&offsets);
                // The first check reports the lag.
                self.next_check_at = Instant::now();
                self.state.set_member(offsets.len());
                Some(ConsumerEvent::Assigned(offsets.into_keys().collect()))
            }
            OperationOutcome::Unassigned | OperationOutcome::Sought(Ok(())) => None,
            OperationOutcome::Assigned(Err(problem)) | OperationOutcome::Sought(Err(problem)) => {
                self.replace_client(&problem)
            }
            OperationOutcome::ClientCreated(client, rebalances) => {
                self.state.set_client(Some(client.clone()));
                let old_client = std::mem::replace(&mut self.client, client);
                // The rebalances of the old client are discarded with its channel.
                self.rebalances = rebalances;
                self.topic_id = None;
                tokio::task::spawn_blocking(move || leave_group(old_client));
                None
            }
        }
    }

    fn discard_assignment(&mut self) {
        self.buffered_message = None;
        self.pending_seeks.clear();
        self.check = None;
        self.progress.clear();
        self.state.set_rebalancing();
        (self.report_lag)(0);
    }

    /// Replaces the client by a new one, which joins the group again. Returns the event that revokes
    /// all partitions. Offsets that are not committed are discarded.
    fn replace_client(&mut self, reason: &str) -> Option<ConsumerEvent> {
        let topic = self.state.topic.clone();
        tracing::warn!(topic, reason, "rejoining the Kafka consumer group");
        self.state.set_last_error(reason.to_owned());
        let partitions = self.progress.assigned_partitions();
        self.discard_assignment();
        let is_repeated = self
            .replaced_at
            .is_some_and(|replaced_at| replaced_at.elapsed() < MIN_TIME_BETWEEN_REPLACEMENTS);
        self.replaced_at = Some(Instant::now());
        let (kafka, state) = (self.kafka.clone(), self.state.clone());
        let creation = async move {
            if is_repeated {
                sleep(REPLACEMENT_DELAY).await;
            }
            loop {
                match create_client(&kafka, &state.topic, &state.group) {
                    Ok((client, rebalances)) => {
                        return OperationOutcome::ClientCreated(client, rebalances);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "failed to create a Kafka consumer; retrying");
                        state.set_last_error(error.to_string());
                        sleep(REPLACEMENT_DELAY).await;
                    }
                }
            }
        };
        self.operation = Some(creation.boxed());
        (!partitions.is_empty()).then_some(ConsumerEvent::Revoked(partitions))
    }

    fn on_error(&mut self, error: &ClientError) -> Option<ConsumerEvent> {
        let hint = error_hint(error.rdkafka_error_code());
        self.state.set_last_error(format!("{error}; {hint}"));
        if matches!(error, ClientError::MessageConsumptionFatal(_))
            || self.client.client().fatal_error().is_some()
        {
            return self.replace_client(&format!("fatal error of the Kafka client: {error}"));
        }
        if self.error_log_throttle.should_log() {
            let (topic, group) = (&self.state.topic, &self.state.group);
            tracing::warn!(topic, group, %error, hint, "error of the Kafka consumer");
        }
        None
    }

    fn start_check(&mut self) {
        let (client, state) = (self.client.clone(), self.state.clone());
        let topic_id = self.topic_id.clone();
        let committing = self.progress.offsets_to_commit();
        let partitions = self.progress.assigned_partitions();
        let offsets = committing.clone();
        let outcome = run_blocking(move || {
            offsets::check_and_commit(
                &client,
                &state.topic,
                topic_id.as_ref(),
                &offsets,
                &partitions,
            )
        });
        self.check = Some(RunningCheck {
            outcome,
            positions: self.progress.processed_offsets(),
            committing,
        });
    }

    fn on_check_finished(
        &mut self,
        outcome: Result<CheckOutcome, String>,
    ) -> Option<ConsumerEvent> {
        let check = self.check.take()?;
        self.next_check_at = Instant::now() + CHECK_INTERVAL;
        let end_offsets = match outcome {
            Ok(CheckOutcome::Unchanged { end_offsets }) => end_offsets,
            Ok(CheckOutcome::Recreated) => {
                return self.replace_client("the topic was deleted and created again");
            }
            Err(error) => {
                if self.error_log_throttle.should_log() {
                    let topic = &self.state.topic;
                    tracing::warn!(topic, error, "failed to commit Kafka offsets; retrying");
                }
                return None;
            }
        };
        self.progress.on_committed(&check.committing);
        let callbacks = self.client.client().context().clone();
        let comparison = self
            .progress
            .compare(&check.positions, &end_offsets, |partition| {
                callbacks.fetch_position(partition)
            });
        (self.report_lag)(comparison.lag);
        if !comparison.partitions_after_end.is_empty() {
            let partitions = comparison.partitions_after_end;
            let problem = format!("the position is after the end of the partitions {partitions:?}");
            return self.replace_client(&problem);
        }
        let stalled = comparison.stalled_partitions;
        self.state.set_stall((!stalled.is_empty()).then(|| {
            let lag = comparison.lag;
            format!("no progress in the partitions {stalled:?}; {lag} messages are not processed")
        }));
        None
    }

    /// Marks all messages of the partition up to this offset as processed. The consumer commits the
    /// offset at its next check. Nothing is stored if the partition is not assigned to this
    /// consumer.
    pub fn store_offset(&mut self, partition: i32, offset: i64) {
        self.progress.on_processed(partition, offset);
    }

    /// Reads a partition again from this offset. No message is returned before the new position is
    /// set. If the position cannot be set, the consumer joins its group again and reads from the
    /// committed offsets.
    pub fn reread(&mut self, partition: i32, offset: i64) {
        if let Some(message) = self
            .buffered_message
            .take_if(|it| it.partition == partition)
        {
            tracing::debug!(partition, offset = message.offset, "message is read again");
        }
        let pending = self.pending_seeks.entry(partition).or_insert(offset);
        *pending = offset.min(*pending);
    }

    fn start_seeks(&mut self) {
        let (client, state) = (self.client.clone(), self.state.clone());
        let seeks = std::mem::take(&mut self.pending_seeks);
        self.operation = Some(run_blocking(move || {
            let seek = |(partition, offset): (i32, i64)| {
                let position = Offset::Offset(offset);
                client
                    .seek(&state.topic, partition, position, SEEK_TIMEOUT)
                    .map_err(|error| {
                        format!("cannot read partition {partition} from offset {offset}: {error}")
                    })
            };
            OperationOutcome::Sought(seeks.into_iter().try_for_each(seek))
        }));
    }

    /// Pauses fetching from these partitions. The partitions stay assigned to this consumer.
    pub fn pause(&self, partitions: &[i32]) {
        if let Err(error) = self.client.pause(&self.partition_list(partitions)) {
            tracing::warn!(?partitions, %error, "failed to pause partitions");
        }
    }

    /// Resumes fetching from these partitions.
    pub fn resume(&self, partitions: &[i32]) {
        if let Err(error) = self.client.resume(&self.partition_list(partitions)) {
            tracing::warn!(?partitions, %error, "failed to resume partitions");
        }
    }

    /// Returns a health check. Another task can run it while this consumer waits for events.
    #[must_use]
    pub fn health_check(&self) -> ConsumerHealthCheck {
        ConsumerHealthCheck {
            state: self.state.clone(),
        }
    }

    /// Commits the stored offsets and leaves the consumer group. Blocks the thread.
    pub fn close(self) {
        let offsets = self.progress.offsets_to_commit();
        commit_before_unassign(
            &self.client,
            &self.state.topic,
            self.topic_id.as_ref(),
            &offsets,
        );
        self.state.set_client(None);
        leave_group(self.client);
    }

    fn partition_list(&self, partitions: &[i32]) -> TopicPartitionList {
        // `pause` and `resume` ignore the offset.
        offsets::partition_list(&self.state.topic, partitions, Offset::Invalid)
    }
}

fn create_client(
    kafka: &KafkaSettings,
    topic: &str,
    group: &str,
) -> Result<(Arc<Client>, mpsc::UnboundedReceiver<RebalanceEvent>), KafkaError> {
    let (sender, rebalances) = mpsc::unbounded_channel();
    let session_timeout = kafka.session_timeout.get();
    let client: Client = client_config::common_config(kafka)?
        .set("group.id", group)
        .set("statistics.interval.ms", STATISTICS_INTERVAL_MS)
        .set(
            "session.timeout.ms",
            session_timeout.as_millis().to_string(),
        )
        .set(
            "heartbeat.interval.ms",
            (session_timeout / 5).as_millis().to_string(),
        )
        .set("auto.offset.reset", "earliest")
        // The consumer commits offsets itself, after it has checked the id of the topic.
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        // The next five settings limit the memory for prefetched messages. librdkafka requires
        // `fetch.max.bytes` to be at least `message.max.bytes`, which has no other effect on a
        // consumer. A consumer can also read messages that are larger than these settings.
        .set("queued.min.messages", "2000")
        .set("queued.max.messages.kbytes", MAX_PREFETCHED_KBYTES)
        .set("message.max.bytes", MAX_FETCH_BYTES)
        .set("fetch.max.bytes", MAX_FETCH_BYTES)
        .set("fetch.message.max.bytes", MAX_FETCH_BYTES)
        // When the prefetch buffer of a partition is full, librdkafka waits this long before
        // the next fetch. With the default of one second, the buffer would often be empty
        // before the next fetch.
        .set("fetch.queue.backoff.ms", "10")
        .create_with_context(ConsumerCallbacks::new(sender))
        .map_err(|error| client_config::rejected_settings_error(&error))?;
    client
        .subscribe(&[topic])
        .map_err(|error| client_config::rejected_settings_error(&error))?;
    Ok((Arc::new(client), rebalances))
}

/// Determines the start offsets of the partitions and assigns the partitions to the client. Retries
/// until the start offsets are known.
///
/// Fails if the topic does not have the expected id. The client must then be replaced, because it
/// has cached offsets of the previous topic.
async fn assign_partitions(
    client: Arc<Client>,
    state: Arc<ConsumerState>,
    partitions: Vec<i32>,
    expected_id: Option<TopicId>,
) -> Result<StartOffsets, String> {
    static LOG_THROTTLE: LogThrottle = LogThrottle::new();
    let partitions: Arc<[i32]> = partitions.into();
    loop {
        let (client, task_state) = (client.clone(), state.clone());
        let (partitions, expected_id) = (partitions.clone(), expected_id.clone());
        let attempt = run_blocking(move || {
            let start = if partitions.is_empty() {
                StartOffsets {
                    topic_id: None,
                    offsets: BTreeMap::new(),
                }
            } else {
                match offsets::fetch_start_offsets(&client, &task_state.topic, &partitions) {
                    Ok(start) => start,
                    Err(error) => return Err(error),
                }
            };
            let has_other_id = expected_id.is_some() && expected_id != start.topic_id;
            if !partitions.is_empty() && has_other_id {
                return Ok(Err("the topic was deleted and created again".to_owned()));
            }
            let assigned = offsets::assign(&client, &task_state.topic, &start.offsets);
            Ok(assigned.map(|()| start))
        });
        match attempt.await {
            Ok(result) => return result,
            Err(error) => {
                if LOG_THROTTLE.should_log() {
                    let topic = &state.topic;
                    tracing::warn!(topic, error, "failed to read start offsets; retrying");
                }
                state.set_last_error(format!("cannot read start offsets: {error}"));
                sleep(RETRY_DELAY).await;
            }
        }
    }
}

/// Commits offsets before the client gives its partitions up. If this fails, the next owner of the
/// partitions reads some messages again.
fn commit_before_unassign(
    client: &Client,
    topic: &str,
    topic_id: Option<&TopicId>,
    offsets: &Offsets,
) {
    if offsets.is_empty() || client.assignment_lost() {
        return;
    }
    match offsets::commit_if_unchanged(client, topic, topic_id, offsets) {
        Ok(true) => {}
        Ok(false) => tracing::warn!(
            topic,
            "the topic was deleted and created again; offsets of the old topic are discarded"
        ),
        Err(error) => tracing::warn!(topic, error, "failed to commit Kafka offsets"),
    }
}

/// Leaves the consumer group and closes the client. Blocks the thread.
fn leave_group(client: Arc<Client>) {
    client.client().context().begin_close();
    // A rebalance that the consumer has received but not completed would block the close.
    if let Err(error) = client.unassign() {
        tracing::debug!(%error, "failed to give up partitions");
    }
    // Dropping the last reference closes the client.
    drop(client);
}

/// Runs a function on a thread that may block.
fn run_blocking<T: Send + 'static>(
    function: impl FnOnce() -> T + Send + 'static,
) -> BoxFuture<'static, T> {
    let task = tokio::task::spawn_blocking(function);
    async move {
        match task.await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                // The panic must end this task, too, so that the supervisor detects it.
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime shuts down.
                Err(_) => std::future::pending().await,
            },
        }
    }
    .boxed()
}

/// Waits for the running check. Waits forever if no check runs.
async fn wait_for_check(check: &mut Option<RunningCheck>) -> Result<CheckOutcome, String> {
    match check {
        Some(check) => (&mut check.outcome).await,
        None => std::future::pending().await,
    }
}

fn to_owned_message(message: &BorrowedMessage<'_>) -> KafkaMessage {
    let mut headers = HashMap::new();
    if let Some(borrowed_headers) = message.headers() {
        for header in borrowed_headers.iter() {
            if let Some(value) = header.value {
                let value = String::from_utf8_lossy(value).into_owned();
                headers.insert(header.key.to_owned(), value);
            }
        }
    }
    let timestamp = match message.timestamp() {
        KafkaTimestamp::CreateTime(millis) | KafkaTimestamp::LogAppendTime(millis) => {
            Timestamp::from_millisecond(millis).ok()
        }
        KafkaTimestamp::NotAvailable => None,
    };
    KafkaMessage {
        partition: message.partition(),
        offset: message.offset(),
        payload: Bytes::copy_from_slice(message.payload().unwrap_or_default()),
        headers,
        timestamp,
    }
}
