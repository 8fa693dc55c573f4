//! Database writer task: collects queued jobs into a batch, writes the batch, and completes the
//! receipts.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::host_reporting::ReportedHosts;
use super::{RecorderDeps, RecorderInput, batch, metrics};
use service::TaskGroup;
use service::health::HealthResult;
use store::{PartitionLease, StoreError, WriteOutcome};

const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);
/// Maximum total size of the messages in a batch. The limit is low, because decoding and writing a
/// batch needs several times as much memory as its messages.
const MAX_BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Inputs that must be committed in the same transaction.
pub(super) struct Job {
    pub inputs: Vec<RecorderInput>,
    /// Lease of the Kafka partition that the inputs were read from. `None` if the inputs did not
    /// come from Kafka.
    pub lease: Option<PartitionLease>,
    /// Completes the caller's receipt.
    pub receipt_sender: oneshot::Sender<()>,
    size_bytes: usize,
}

impl Job {
    pub fn new(
        inputs: Vec<RecorderInput>,
        lease: Option<PartitionLease>,
        receipt_sender: oneshot::Sender<()>,
    ) -> Self {
        let size_bytes = inputs.iter().map(RecorderInput::size_bytes).sum();
        Self {
            inputs,
            lease,
            receipt_sender,
            size_bytes,
        }
    }
}

/// Status that all writers share: the amount of queued data, and the writers that are retrying a
/// batch.
#[derive(Default)]
pub(super) struct WriterStatus {
    queued_message_count: AtomicUsize,
    queued_bytes: AtomicUsize,
    retrying_writers: Mutex<RetryingWriters>,
}

#[derive(Default)]
struct RetryingWriters {
    task_ids: HashSet<tokio::task::Id>,
    last_error: String,
}

impl WriterStatus {
    pub fn health(&self) -> HealthResult {
        let retrying = self.retrying_writers.lock();
        if retrying.task_ids.is_empty() {
            Ok(())
        } else {
            let error = &retrying.last_error;
            Err(format!("batch write failed; retrying: {error}"))
        }
    }

    /// Returns the number and the total bytes of the messages that are queued or being written.
    pub fn queued_messages_and_bytes(&self) -> (usize, usize) {
        (
            self.queued_message_count.load(Ordering::Relaxed),
            self.queued_bytes.load(Ordering::Relaxed),
        )
    }

    pub fn add_to_queue_size(&self, job: &Job) {
        let message_count = job.inputs.len();
        let queued_before = self
            .queued_message_count
            .fetch_add(message_count, Ordering::Relaxed);
        metrics::set_in_flight_messages(queued_before + message_count);
        self.queued_bytes
            .fetch_add(job.size_bytes, Ordering::Relaxed);
    }

    fn subtract_from_queue_size(&self, message_count: usize, byte_count: usize) {
        let queued_before = self
            .queued_message_count
            .fetch_sub(message_count, Ordering::Relaxed);
        metrics::set_in_flight_messages(queued_before.saturating_sub(message_count));
        self.queued_bytes.fetch_sub(byte_count, Ordering::Relaxed);
    }

    fn mark_retrying(&self, error: &StoreError) {
        let mut retrying = self.retrying_writers.lock();
        retrying.task_ids.insert(tokio::task::id());
        retrying.last_error = error.to_string();
    }

    fn mark_not_retrying(&self) {
        self.retrying_writers
            .lock()
            .task_ids
            .remove(&tokio::task::id());
    }
}

/// Writes the inputs of some of the clients to the database.
pub struct Writer {
    /// Number of the writer, starting at 1.
    number: usize,
    deps: Arc<RecorderDeps>,
    status: Arc<WriterStatus>,
    jobs: mpsc::UnboundedReceiver<Job>,
}

impl Writer {
    pub(super) fn new(
        number: usize,
        deps: Arc<RecorderDeps>,
        status: Arc<WriterStatus>,
        jobs: mpsc::UnboundedReceiver<Job>,
    ) -> Self {
        Self {
            number,
            deps,
            status,
            jobs,
        }
    }

    /// Returns the name of the task that runs this writer.
    #[must_use]
    pub fn task_name(&self) -> String {
        format!("recorder_writer_{}", self.number)
    }

    /// Writes batches until `tasks` is cancelled and the queue is empty.
    pub async fn run(self, tasks: TaskGroup) {
        write_batches(&self.deps, &self.status, self.jobs, tasks).await;
    }
}

async fn write_batches(
    deps: &RecorderDeps,
    status: &WriterStatus,
    mut jobs: mpsc::UnboundedReceiver<Job>,
    tasks: TaskGroup,
) {
    // A received job that did not fit into the previous batch.
    let mut leftover_job: Option<Job> = None;
    loop {
        let first_job = if let Some(job) = leftover_job.take() {
            job
        } else {
            let job = tokio::select! {
                job = jobs.recv() => job,
                // After `close`, `recv` still returns the queued jobs, then `None`.
                () = tasks.cancelled(), if !jobs.is_closed() => { jobs.close(); continue }
            };
            let Some(job) = job else {
                // There are no more jobs, because the writer is stopping or because all handles of
                // the recorder were dropped.
                return tasks.cancelled().await;
            };
            job
        };
        let (mut messages, mut bytes) = (first_job.inputs.len(), first_job.size_bytes);
        let mut batch = vec![first_job];
        while let Ok(job) = jobs.try_recv() {
            let fits_into_batch = messages + job.inputs.len() <= deps.config.max_batch_size
                && bytes + job.size_bytes <= MAX_BATCH_BYTES;
            if !fits_into_batch {
                leftover_job = Some(job);
                break;
            }
            messages += job.inputs.len();
            bytes += job.size_bytes;
            batch.push(job);
        }
        write_with_retries(deps, status, batch, &tasks).await;
        status.subtract_from_queue_size(messages, bytes);
    }
}

/// Writes a batch and retries until every job is committed or fenced. After `tasks` is cancelled,
/// tries only once more.
async fn write_with_retries(
    deps: &RecorderDeps,
    status: &WriterStatus,
    mut jobs: Vec<Job>,
    tasks: &TaskGroup,
) {
    let started_at = Instant::now();
    let mut retry_delay = MIN_RETRY_DELAY;
    let mut attempt = 0;
    let mut reported_hosts = ReportedHosts::default();
    while !jobs.is_empty() {
        let inputs: Vec<&RecorderInput> = jobs.iter().flat_map(|job| &job.inputs).collect();
        let mut leases: Vec<PartitionLease> = jobs.iter().filter_map(|job| job.lease).collect();
        leases.sort_unstable();
        leases.dedup();
        let messages = inputs.len();
        match batch::write_inputs(deps, &inputs, &leases, &mut reported_hosts).await {
            Ok(WriteOutcome::Committed) => {
                metrics::observe_committed_batch(messages, started_at.elapsed());
                let now = deps.clock.now();
                for message in inputs.iter().filter_map(|input| input.inbound_message()) {
                    metrics::observe_record_latency(now.duration_since(message.received_at));
                }
                break;
            }
            Ok(WriteOutcome::Fenced(lost_leases)) => {
                // The new owner of the partitions reads these messages from Kafka again. The jobs
                // are dropped, so their receipts fail.
                let partitions: Vec<i32> =
                    lost_leases.iter().map(|lease| lease.partition).collect();
                metrics::count_fenced_partitions(&partitions);
                jobs.retain(|job| job.lease.is_none_or(|lease| !lost_leases.contains(&lease)));
            }
            Err(error) => {
                attempt += 1;
                status.mark_retrying(&error);
                metrics::report_batch_retry(attempt, messages, &error);
                if tasks.is_cancelled() {
                    metrics::report_batch_not_written(messages, &error);
                    // The receipts of dropped jobs fail, so the messages are not acknowledged.
                    jobs.clear();
                }
                tokio::select! {
                    () = tokio::time::sleep(retry_delay) => {}
                    () = tasks.cancelled() => {}
                }
                retry_delay = (retry_delay * 2).min(MAX_RETRY_DELAY);
            }
        }
    }
    if attempt > 0 {
        status.mark_not_retrying();
        metrics::report_batch_retry_ended();
    }
    if attempt > 0 && !jobs.is_empty() {
        tracing::info!(attempt, "batch written after retries");
    }
    for job in jobs {
        // `send` fails if the caller no longer waits for the receipt. The message is then not
        // acknowledged and is delivered again, which is harmless.
        let _ = job.receipt_sender.send(());
    }
}
