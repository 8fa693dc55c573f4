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
mod caught_up;
mod check;
pub(crate) mod client;
mod commit_order;
mod message;
pub(crate) mod offsets;
mod operations;
mod progress;
mod state;

use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::Consumer as _;
use rdkafka::error::KafkaError as ClientError;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use self::callbacks::RebalanceEvent;
use self::check::{RunningCheck, wait_for_check};
pub use self::client::CONSUMER_BUFFER_BYTES;
use self::client::{Client, create_client, leave_group, prepare_close};
use self::commit_order::CommitOrder;
use self::message::to_owned_message;
pub use self::message::{ConsumerEvent, KafkaMessage};
use self::offsets::{Offsets, StartOffsets};
use self::operations::{Operation, OperationOutcome};
use self::progress::Progress;
pub use self::state::{ConsumerHealthCheck, ConsumerProgress, TopicProgress};
use self::state::{ConsumerState, error_hint};
use super::KafkaSettings;
use super::client_config::KafkaError;
use crate::topic_identity::TopicId;
use service::LogThrottle;

/// The replacement of the client is delayed if the previous one was less than this time ago.
const MIN_TIME_BETWEEN_REPLACEMENTS: Duration = Duration::from_secs(30);

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
    operation: Option<Operation>,
    /// The offsets to which the consumer must seek before the next message is read.
    pending_seeks: Offsets,
    /// The running check of the topic. `None` if no check runs.
    check: Option<RunningCheck>,
    /// The order of the commits of the current assignment.
    commit_order: CommitOrder,
    next_check_at: Instant,
    /// The id of the topic that the client has read. `None` until the first assignment of the
    /// client, or if the cluster does not support topic ids.
    topic_id: Option<TopicId>,
    progress: Progress,
    replaced_at: Option<Instant>,
    error_log_throttle: LogThrottle,
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
            commit_order: CommitOrder::default(),
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
                    Ok(message) => {
                        self.buffered_message =
                            Some(to_owned_message(&message, self.topic_id.as_ref()));
                    },
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

    /// Waits for the running operation, runs the pending seeks, and waits for operations that follow.
    /// Starts a check if it is due, and handles a finished check.
    async fn finish_background_work(&mut self) -> Option<ConsumerEvent> {
        loop {
            if self.operation.is_none() && !self.pending_seeks.is_empty() {
                self.start_seeks();
            }
            let Some(operation) = &mut self.operation else {
                break;
            };
            let outcome = operation.await;
            self.operation = None;
            if let Some(event) = self.on_operation_finished(outcome) {
                return Some(event);
            }
        }
        // While messages are available, `next` does not reach the branches for the check.
        if let Some(check) = &mut self.check {
            let outcome = check.try_outcome()?;
            return self.on_check_finished(outcome);
        }
        if !self.progress.is_empty() && Instant::now() >= self.next_check_at {
            self.start_check();
        }
        None
    }

    fn on_rebalance(&mut self, rebalance: RebalanceEvent) -> Option<ConsumerEvent> {
        let (client, state) = (self.client.clone(), self.state.clone());
        let topic_id = self.topic_id.clone();
        match rebalance {
            RebalanceEvent::Assigned(partitions) => {
                self.operation = Some(operations::assign(client, state, partitions, topic_id));
                None
            }
            RebalanceEvent::Revoked(partitions) => {
                let offsets = self.progress.offsets_to_commit();
                let commit_order = self.commit_order.clone();
                self.discard_assignment();
                self.operation = Some(operations::unassign(
                    client,
                    state,
                    topic_id,
                    offsets,
                    commit_order,
                ));
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
                self.commit_order = CommitOrder::default();
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
        self.operation = Some(operations::replace_client(kafka, state, is_repeated));
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

    /// Marks all messages of the partition up to this offset as processed. The consumer commits the
    /// offset at its next check. Nothing is stored if the partition is not assigned to this
    /// consumer.
    pub fn store_offset(&mut self, partition: i32, offset: i64) {
        self.progress.on_processed(partition, offset);
    }

    /// Delays the report that no progress is made. Call this function while messages wait for another
    /// topic.
    pub fn reset_stall_timer(&mut self) {
        self.progress.reset_stall_timer();
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
        let positions = std::mem::take(&mut self.pending_seeks);
        self.operation = Some(operations::seek(client, state, positions));
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

    /// Returns the progress of this consumer. Another task can read it.
    #[must_use]
    pub fn progress(&self) -> ConsumerProgress {
        ConsumerProgress::new(self.state.clone())
    }

    /// Commits the stored offsets and leaves the consumer group. Blocks the thread.
    pub fn close(self) {
        operations::commit_before_unassign(
            &self.client,
            &self.state.topic,
            self.topic_id.as_ref(),
            &self.progress.offsets_to_commit(),
            &self.commit_order,
        );
        drop(self);
    }

    fn partition_list(&self, partitions: &[i32]) -> TopicPartitionList {
        // `pause` and `resume` ignore the offset.
        offsets::partition_list(&self.state.topic, partitions, Offset::Invalid)
    }
}

/// Leaves the consumer group, also if the task of the consumer panics. Offsets that are not committed
/// are discarded.
impl Drop for Consumer {
    fn drop(&mut self) {
        // Health checks must not keep the client open.
        self.state.set_client(None);
        prepare_close(&self.client);
    }
}
