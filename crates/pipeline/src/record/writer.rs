//! Database writer task: collects queued jobs into a batch, writes the batch, and completes the
//! receipts.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::batch::{self, BatchProgress};
use super::bisect::WriteError;
use super::decoded_job::DecodedJob;
use super::inventory_reports::{DeliveredReports, InventoryReporting, ReportQueue, ReportTask};
use super::prepared_input::PreparedInput;
use super::rejections::RejectionMonitor;
use super::{RecorderDeps, metrics};
use service::LogThrottle;
use service::TaskGroup;
use service::health::HealthResult;
use store::{PartitionLease, PresenceBatch, StoreError, WriteOutcome};

const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);
/// Pause after the second conflict in a row. The pause after a later conflict is twice as long.
const MIN_CONFLICT_DELAY: Duration = Duration::from_millis(10);
const MAX_CONFLICT_DELAY: Duration = Duration::from_millis(500);
/// Maximum total size of the messages in a batch. The limit is low, because a decoded message can
/// need almost a hundred times as much memory as its payload.
const MAX_BATCH_BYTES: usize = 2 * 1024 * 1024;
/// A batch that is older is reported by the health check, even if no attempt has failed yet.
const MAX_HEALTHY_BATCH_AGE: Duration = Duration::from_secs(15);

/// Inputs that must be committed in the same transaction.
pub(super) struct Job {
    pub inputs: Vec<PreparedInput>,
    /// Lease of the Kafka partition that the inputs were read from. `None` if the inputs did not
    /// come from Kafka.
    pub lease: Option<PartitionLease>,
    /// Completes the caller's receipt.
    pub receipt_sender: oneshot::Sender<()>,
    pub size_bytes: usize,
}

impl Job {
    pub fn new(
        inputs: Vec<PreparedInput>,
        lease: Option<PartitionLease>,
        receipt_sender: oneshot::Sender<()>,
    ) -> Self {
        let size_bytes = inputs.iter().map(PreparedInput::size_bytes).sum();
        Self {
            inputs,
            lease,
            receipt_sender,
            size_bytes,
        }
    }
}

/// Status that all writers share: the amount of queued data, the batches that are being written,
/// and the rejected rows.
#[derive(Default)]
pub(super) struct WriterStatus {
    queued_message_count: AtomicUsize,
    queued_bytes: AtomicUsize,
    /// The batch of each writer task that is writing one.
    active_batches: Mutex<HashMap<tokio::task::Id, ActiveBatch>>,
    rejections: RejectionMonitor,
}

/// A batch that is being written.
struct ActiveBatch {
    started_at: Instant,
    /// The error of the latest attempt. `None` if no attempt has failed.
    last_error: Option<String>,
}

impl WriterStatus {
    pub fn health(&self) -> HealthResult {
        let batches = self.active_batches.lock();
        if let Some(error) = batches.values().find_map(|batch| batch.last_error.as_ref()) {
            return Err(format!("batch write failed; retrying: {error}"));
        }
        let ages = batches.values().map(|batch| batch.started_at.elapsed());
        match ages.max() {
            Some(age) if age > MAX_HEALTHY_BATCH_AGE => {
                let seconds = age.as_secs();
                Err(format!(
                    "a batch has been waiting for the database for {seconds}s"
                ))
            }
            _ => Ok(()),
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

    fn begin_batch(&self) {
        let batch = ActiveBatch {
            started_at: Instant::now(),
            last_error: None,
        };
        self.active_batches.lock().insert(tokio::task::id(), batch);
    }

    fn set_last_error(&self, error: &WriteError) {
        if let Some(batch) = self.active_batches.lock().get_mut(&tokio::task::id()) {
            batch.last_error = Some(error.to_string());
        }
    }

    fn end_batch(&self) {
        self.active_batches.lock().remove(&tokio::task::id());
    }
}

/// What a writer needs to write a batch.
pub(super) struct WriterContext {
    pub deps: Arc<RecorderDeps>,
    status: Arc<WriterStatus>,
    /// The queue of reports to inventory. `None` if inventory is not configured, and while the
    /// writer stops.
    pub report_queue: Option<ReportQueue>,
}

impl WriterContext {
    pub fn monitor(&self) -> &RejectionMonitor {
        &self.status.rejections
    }
}

/// Writes the inputs of some of the clients to the database.
pub struct Writer {
    /// Name of the task that runs this writer.
    task_name: String,
    context: WriterContext,
    jobs: mpsc::UnboundedReceiver<Job>,
    /// A received job that did not fit into the previous batch.
    leftover_job: Option<Job>,
    /// Sends the reports in `context.report_queue`. `None` while the task runs.
    report_task: Option<ReportTask>,
    delivered_reports: DeliveredReports,
}

/// What a writer does next.
enum Work {
    /// Write a batch that starts with this job.
    Batch(Job),
    /// Store delivered reports, because they are due and there are no jobs.
    DeliveredReports,
}

/// The jobs that are written in one transaction.
#[derive(Default)]
struct Batch {
    jobs: Vec<DecodedJob>,
    message_count: usize,
    size_bytes: usize,
    progress: BatchProgress,
}

impl Writer {
    pub(super) fn new(
        task_name: String,
        deps: Arc<RecorderDeps>,
        status: Arc<WriterStatus>,
        inventory_reporting: Option<&InventoryReporting>,
        jobs: mpsc::UnboundedReceiver<Job>,
    ) -> Self {
        let (report_queue, report_task, delivered_reports) = match inventory_reporting {
            Some(reporting) => {
                let (queue, task, delivered) = reporting.for_writer();
                (Some(queue), Some(task), delivered)
            }
            None => (None, None, DeliveredReports::none()),
        };
        Self {
            task_name,
            context: WriterContext {
                deps,
                status,
                report_queue,
            },
            jobs,
            leftover_job: None,
            report_task,
            delivered_reports,
        }
    }

    /// Returns the name of the task that runs this writer.
    #[must_use]
    pub fn task_name(&self) -> String {
        self.task_name.clone()
    }

    /// Writes batches until `tasks` is cancelled and the queue is empty. Spawns the task that sends
    /// the reports to inventory.
    pub async fn run(mut self, tasks: TaskGroup) {
        if let Some(report_task) = self.report_task.take() {
            let task_name = format!("inventory_reports_of_{}", self.task_name);
            tasks.spawn_essential(task_name, report_task.run(tasks.clone()));
        }
        while let Some(work) = self.next_work(&tasks).await {
            match work {
                Work::Batch(first_job) => self.write_batch(first_job, &tasks).await,
                Work::DeliveredReports => {
                    self.store_delivered_reports().await;
                }
            }
        }
        // There are no more jobs, because the writer is stopping or because all handles of the
        // recorder were dropped. Closes the queue, so that the task sends the last reports and ends.
        self.context.report_queue = None;
        while self.delivered_reports.wait_until_due().await && self.store_delivered_reports().await
        {
        }
        tasks.cancelled().await;
    }

    async fn write_batch(&mut self, first_job: Job, tasks: &TaskGroup) {
        self.context.status.begin_batch();
        let mut batch = Batch::default();
        self.add_job(&mut batch, first_job);
        self.add_queued_jobs(&mut batch);
        self.write_with_retries(&mut batch, tasks).await;
        self.context.status.end_batch();
        self.context
            .status
            .subtract_from_queue_size(batch.message_count, batch.size_bytes);
        for job in batch.jobs {
            // `send` fails if the caller no longer waits for the receipt. The message is then
            // not acknowledged and is delivered again, which is harmless.
            let _ = job.receipt_sender.send(());
        }
    }

    /// Waits for the next job, or for delivered reports if there is no job. Returns `None` if there
    /// are no more jobs.
    async fn next_work(&mut self, tasks: &TaskGroup) -> Option<Work> {
        if let Some(job) = self.leftover_job.take() {
            return Some(Work::Batch(job));
        }
        loop {
            tokio::select! {
                biased;
                // After `close`, `recv` still returns the queued jobs, then `None`.
                () = tasks.cancelled(), if !self.jobs.is_closed() => self.jobs.close(),
                job = self.jobs.recv() => return job.map(Work::Batch),
                true = self.delivered_reports.wait_until_due() => return Some(Work::DeliveredReports),
            }
        }
    }

    /// Stores delivered reports in a transaction of their own. If this fails, they are stored later.
    /// Returns whether the transaction succeeded.
    async fn store_delivered_reports(&mut self) -> bool {
        static LOG_THROTTLE: LogThrottle = LogThrottle::new();
        let batch = PresenceBatch {
            delivered_reports: self.delivered_reports.take(),
            ..PresenceBatch::default()
        };
        let deps = &self.context.deps;
        let write = deps.presence.record_batch(&batch, &[], deps.clock.now());
        match write.await {
            Ok(_) => true,
            Err(StoreError::RowRejected(rejection)) => {
                metrics::count_discarded_row(&rejection.to_string());
                true
            }
            Err(error) => {
                if LOG_THROTTLE.should_log() {
                    tracing::warn!(%error, "failed to store delivered inventory reports");
                }
                self.delivered_reports.restore(batch.delivered_reports);
                false
            }
        }
    }

    /// Adds the queued jobs that fit into the batch.
    fn add_queued_jobs(&mut self, batch: &mut Batch) {
        while let Some(job) = self
            .leftover_job
            .take()
            .or_else(|| self.jobs.try_recv().ok())
        {
            let fits_into_batch = batch.message_count + job.inputs.len()
                <= self.context.deps.config.max_batch_size
                && batch.size_bytes + job.size_bytes <= MAX_BATCH_BYTES;
            if !fits_into_batch {
                self.leftover_job = Some(job);
                return;
            }
            self.add_job(batch, job);
        }
    }

    /// Drops a batch that was not written before the shutdown, and all queued jobs. Their receipts fail, so
    /// the messages are not acknowledged.
    fn drop_batch(&mut self, batch: &mut Batch) {
        batch.jobs.clear();
        self.drop_queued_jobs();
    }

    /// Drops all queued jobs, because an earlier batch was not written before the shutdown.
    ///
    /// If a later job were written, the Kafka reader would store its offset, and the messages of the
    /// earlier batch would be lost. The messages of a client must also be written in order.
    fn drop_queued_jobs(&mut self) {
        self.jobs.close();
        self.leftover_job = None;
        while self.jobs.try_recv().is_ok() {}
    }

    /// Decodes a job and adds it to the batch.
    fn add_job(&self, batch: &mut Batch, job: Job) {
        let job = DecodedJob::new(job, batch.message_count, self.context.deps.clock.now());
        batch.message_count += job.input_count;
        batch.size_bytes += job.size_bytes;
        batch.jobs.push(job);
    }

    /// Writes a batch and retries until every job is committed or fenced. Removes fenced jobs. After
    /// `tasks` is cancelled, tries only once more. If that fails, drops all jobs.
    async fn write_with_retries(&mut self, batch: &mut Batch, tasks: &TaskGroup) {
        let started_at = Instant::now();
        let mut retry_delay = MIN_RETRY_DELAY;
        let mut conflict_delay = MIN_CONFLICT_DELAY;
        let (mut attempt, mut conflicts) = (0, 0);
        batch.progress.delivered_reports = self.delivered_reports.take_due();
        while !batch.jobs.is_empty() {
            let result =
                batch::write_jobs(&self.context, &mut batch.jobs, &mut batch.progress).await;
            match result {
                Ok(WriteOutcome::Committed) => {
                    batch.progress.delivered_reports.clear();
                    self.on_committed(batch, started_at);
                    break;
                }
                Ok(WriteOutcome::Fenced(lost_leases)) => drop_fenced_jobs(batch, &lost_leases),
                // The next attempt loads the states again. A single conflict is usual.
                Ok(WriteOutcome::Conflict) => {
                    conflicts += 1;
                    metrics::report_conflict(conflicts, batch.message_count);
                    if conflicts > 1 && tasks.is_cancelled() {
                        self.drop_batch(batch);
                        break;
                    }
                    if conflicts > 1 {
                        pause(conflict_delay, tasks).await;
                        conflict_delay = (conflict_delay * 2).min(MAX_CONFLICT_DELAY);
                    }
                }
                Err(WriteError::RejectionOutageEnded) => {}
                Err(error) => {
                    attempt += 1;
                    self.context.status.set_last_error(&error);
                    metrics::report_batch_retry(attempt, batch.message_count, &error);
                    if tasks.is_cancelled() {
                        metrics::report_batch_not_written(batch.message_count, &error);
                        self.drop_batch(batch);
                        break;
                    }
                    pause(retry_delay, tasks).await;
                    retry_delay = (retry_delay * 2).min(MAX_RETRY_DELAY);
                    // The outage ends when the database accepts a row, so new rows must be tried,
                    // too. The rows of this batch could be rejected for other reasons.
                    if matches!(error, WriteError::RejectionOutage(_)) {
                        self.add_queued_jobs(batch);
                    }
                }
            }
        }
        // Not empty if the batch was not committed.
        let unstored_reports = std::mem::take(&mut batch.progress.delivered_reports);
        self.delivered_reports.restore(unstored_reports);
        if attempt > 0 {
            metrics::report_batch_retry_ended();
        }
        if attempt > 0 && !batch.jobs.is_empty() {
            tracing::info!(attempt, "batch written after retries");
        }
    }

    fn on_committed(&self, batch: &mut Batch, started_at: Instant) {
        let message_count = batch.jobs.iter().map(|job| job.input_count).sum();
        metrics::observe_committed_batch(message_count, started_at.elapsed());
        let now = self.context.deps.clock.now();
        for job in &mut batch.jobs {
            for received_at in &job.receive_times {
                metrics::observe_record_latency(now.duration_since(*received_at));
            }
            for handshake_error in job.handshake_errors.drain(..) {
                let sender = &self.context.deps.handshake_error_sender;
                sender.send(handshake_error);
            }
        }
    }
}

/// Waits before the next attempt. Ends early if `tasks` is cancelled.
async fn pause(duration: Duration, tasks: &TaskGroup) {
    tokio::select! {
        () = tokio::time::sleep(duration) => {}
        () = tasks.cancelled() => {}
    }
}

/// Drops the jobs of partitions that have a new owner. Their receipts fail, and the new owner reads
/// the messages from Kafka again.
fn drop_fenced_jobs(batch: &mut Batch, lost_leases: &[PartitionLease]) {
    let partitions: Vec<i32> = lost_leases.iter().map(|lease| lease.partition).collect();
    metrics::count_fenced_partitions(&partitions);
    let is_fenced = |job: &DecodedJob| job.lease.is_some_and(|lease| lost_leases.contains(&lease));
    batch.jobs.retain(|job| !is_fenced(job));
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::StoreError;

    #[tokio::test(start_paused = true)]
    async fn health_reports_a_batch_that_waits_too_long_for_the_database() {
        let status = Arc::new(WriterStatus::default());
        let writer = tokio::spawn({
            let status = status.clone();
            async move {
                status.begin_batch();
                tokio::time::sleep(Duration::from_secs(20)).await;
                status.end_batch();
            }
        });
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(status.health(), Ok(()));
        tokio::time::sleep(Duration::from_secs(7)).await;
        let expected = "a batch has been waiting for the database for 17s";
        assert_eq!(status.health(), Err(expected.to_owned()));
        writer.await.unwrap();
        assert_eq!(status.health(), Ok(()));
    }

    #[tokio::test]
    async fn health_reports_the_error_of_a_retried_batch() {
        let status = Arc::new(WriterStatus::default());
        let task_status = status.clone();
        let task = tokio::spawn(async move {
            task_status.begin_batch();
            let error = StoreError::Schema("no such table".to_owned());
            task_status.set_last_error(&error.into());
        });
        task.await.unwrap();
        let expected = "batch write failed; retrying: no such table";
        assert_eq!(status.health(), Err(expected.to_owned()));
    }
}
