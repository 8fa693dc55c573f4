//! Database writer task: collects queued jobs into a batch, writes the batch, and completes the
//! receipts.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::inventory_step::ReportedHosts;
use super::{RecorderDeps, RecorderInput, batch};
use crate::shutdown::TaskGroup;
use crate::store::{PartitionLease, StoreError, WriteOutcome};
use crate::telemetry::health::HealthResult;
use crate::telemetry::metrics;

const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);
/// Maximum size of a batch's messages. Decoding and writing need several times as much memory.
const MAX_BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Inputs that must be committed in the same transaction.
pub(super) struct Job {
    pub inputs: Vec<RecorderInput>,
    /// Lease of the Kafka partition that the inputs came from.
    pub lease: Option<PartitionLease>,
    /// Completes the caller's receipt.
    pub committed: oneshot::Sender<()>,
    bytes: usize,
}

impl Job {
    pub fn new(
        inputs: Vec<RecorderInput>,
        lease: Option<PartitionLease>,
        committed: oneshot::Sender<()>,
    ) -> Self {
        let bytes = inputs.iter().map(RecorderInput::size_bytes).sum();
        Self {
            inputs,
            lease,
            committed,
            bytes,
        }
    }
}

/// Status shared by all writers: how much is queued, and which writers are retrying a batch.
#[derive(Default)]
pub(super) struct WriterStatus {
    queued_messages: AtomicUsize,
    queued_bytes: AtomicUsize,
    retrying: Mutex<RetryingWriters>,
}

#[derive(Default)]
struct RetryingWriters {
    writers: HashSet<tokio::task::Id>,
    last_error: String,
}

impl WriterStatus {
    pub fn health(&self) -> HealthResult {
        let retrying = self.retrying.lock();
        if retrying.writers.is_empty() {
            Ok(())
        } else {
            let error = &retrying.last_error;
            Err(format!("batch write failed; retrying: {error}"))
        }
    }

    /// Returns the number and the bytes of messages that are queued or being written.
    pub fn queued(&self) -> (usize, usize) {
        (
            self.queued_messages.load(Ordering::Relaxed),
            self.queued_bytes.load(Ordering::Relaxed),
        )
    }

    pub fn add_queued(&self, job: &Job) {
        let messages = job.inputs.len();
        let before = self.queued_messages.fetch_add(messages, Ordering::Relaxed);
        metrics::set_in_flight_messages(before + messages);
        self.queued_bytes.fetch_add(job.bytes, Ordering::Relaxed);
    }

    fn remove_queued(&self, messages: usize, bytes: usize) {
        let before = self.queued_messages.fetch_sub(messages, Ordering::Relaxed);
        metrics::set_in_flight_messages(before.saturating_sub(messages));
        self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn mark_retrying(&self, error: &StoreError) {
        let mut retrying = self.retrying.lock();
        retrying.writers.insert(tokio::task::id());
        retrying.last_error = error.to_string();
    }

    fn mark_ok(&self) {
        self.retrying.lock().writers.remove(&tokio::task::id());
    }
}

/// Writes batches until `tasks` is cancelled and the queue is empty.
pub(super) async fn run(
    deps: Arc<RecorderDeps>,
    status: Arc<WriterStatus>,
    mut jobs: mpsc::UnboundedReceiver<Job>,
    tasks: TaskGroup,
) {
    // A received job that did not fit into the previous batch.
    let mut leftover: Option<Job> = None;
    loop {
        let first = if let Some(job) = leftover.take() {
            job
        } else {
            let job = tokio::select! {
                job = jobs.recv() => job,
                // After `close`, `recv` still returns the queued jobs, then `None`.
                () = tasks.cancelled(), if !jobs.is_closed() => { jobs.close(); continue }
            };
            let Some(job) = job else { return };
            job
        };
        let (mut messages, mut bytes) = (first.inputs.len(), first.bytes);
        let mut batch = vec![first];
        while let Ok(job) = jobs.try_recv() {
            let fits = messages + job.inputs.len() <= deps.config.max_batch_size
                && bytes + job.bytes <= MAX_BATCH_BYTES;
            if !fits {
                leftover = Some(job);
                break;
            }
            messages += job.inputs.len();
            bytes += job.bytes;
            batch.push(job);
        }
        write(&deps, &status, batch).await;
        status.remove_queued(messages, bytes);
    }
}

/// Writes a batch and retries until every job is committed or fenced.
async fn write(deps: &RecorderDeps, status: &WriterStatus, mut jobs: Vec<Job>) {
    let started = Instant::now();
    let mut retry_delay = MIN_RETRY_DELAY;
    let mut attempt = 0;
    let mut reported_hosts = ReportedHosts::default();
    while !jobs.is_empty() {
        let inputs: Vec<&RecorderInput> = jobs.iter().flat_map(|job| &job.inputs).collect();
        let mut leases: Vec<PartitionLease> = jobs.iter().filter_map(|job| job.lease).collect();
        leases.sort_unstable();
        leases.dedup();
        let messages = inputs.len();
        match batch::record(deps, &inputs, &leases, &mut reported_hosts).await {
            Ok(WriteOutcome::Committed) => {
                metrics::batch_committed(messages, started.elapsed());
                let now = deps.clock.now();
                for message in inputs.iter().filter_map(|input| input.inbound_message()) {
                    metrics::record_latency(now.duration_since(message.received_at));
                }
                break;
            }
            Ok(WriteOutcome::Fenced(lost_leases)) => {
                // The new owner of the partitions reads these messages from Kafka again. Dropping
                // the jobs fails their receipts.
                let partitions: Vec<i32> = lost_leases.iter().map(|l| l.partition).collect();
                metrics::partitions_fenced(&partitions);
                jobs.retain(|job| job.lease.is_none_or(|lease| !lost_leases.contains(&lease)));
            }
            Err(error) => {
                attempt += 1;
                status.mark_retrying(&error);
                metrics::batch_retrying(attempt, messages, &error);
                tokio::time::sleep(retry_delay).await;
                retry_delay = (retry_delay * 2).min(MAX_RETRY_DELAY);
            }
        }
    }
    if attempt > 0 {
        status.mark_ok();
        metrics::batch_retry_ended();
        tracing::info!(attempt, "batch written after retries");
    }
    for job in jobs {
        // The send fails if the caller no longer waits for the receipt. The message is then
        // delivered again, which is harmless.
        let _ = job.committed.send(());
    }
}
