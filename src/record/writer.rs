//! A writer: takes what has gathered, has it recorded, lets the waiting go.

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

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A batch takes several times this in memory while it is parsed and written.
const BATCH_MAX_BYTES: usize = 8 * 1024 * 1024;

/// Events, the partition that they came from, and who waits for them.
pub(super) struct Job {
    pub events: Vec<RecorderInput>,
    pub fence: Option<PartitionLease>,
    pub done: oneshot::Sender<()>,
    bytes: usize,
}

impl Job {
    pub fn new(
        events: Vec<RecorderInput>,
        fence: Option<PartitionLease>,
        done: oneshot::Sender<()>,
    ) -> Self {
        let bytes = events.iter().map(RecorderInput::bytes).sum();
        Self {
            events,
            fence,
            done,
            bytes,
        }
    }
}

/// How much waits to be written, which writers hold a batch, and why.
#[derive(Default)]
pub(super) struct WriterStatus {
    events: AtomicUsize,
    bytes: AtomicUsize,
    held: Mutex<RetryingWriters>,
}

#[derive(Default)]
struct RetryingWriters {
    writers: HashSet<tokio::task::Id>,
    why: String,
}

impl WriterStatus {
    pub fn verdict(&self) -> HealthResult {
        let held = self.held.lock();
        if held.writers.is_empty() {
            Ok(())
        } else {
            Err(format!("holding messages: {}", held.why))
        }
    }

    /// Events that wait, and their bytes.
    pub fn waiting(&self) -> (usize, usize) {
        (
            self.events.load(Ordering::Relaxed),
            self.bytes.load(Ordering::Relaxed),
        )
    }

    pub fn add_waiting(&self, job: &Job) {
        let before = self.events.fetch_add(job.events.len(), Ordering::Relaxed);
        metrics::in_flight(before + job.events.len());
        self.bytes.fetch_add(job.bytes, Ordering::Relaxed);
    }

    fn take_waiting(&self, events: usize, bytes: usize) {
        let before = self.events.fetch_sub(events, Ordering::Relaxed);
        metrics::in_flight(before.saturating_sub(events));
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn hold(&self, error: &StoreError) {
        let mut held = self.held.lock();
        held.writers.insert(tokio::task::id());
        held.why = error.to_string();
    }

    fn release(&self) {
        self.held.lock().writers.remove(&tokio::task::id());
    }
}

pub(super) async fn run(
    parts: Arc<RecorderDeps>,
    standing: Arc<WriterStatus>,
    mut jobs: mpsc::UnboundedReceiver<Job>,
    stopper: TaskGroup,
) {
    // A job that was taken and did not fit the batch any more.
    let mut over: Option<Job> = None;
    loop {
        let first = if let Some(job) = over.take() {
            job
        } else {
            let job = tokio::select! {
                job = jobs.recv() => job,
                // Once closed, what was taken in before still comes out, then nothing.
                () = stopper.asked(), if !jobs.is_closed() => { jobs.close(); continue }
            };
            let Some(job) = job else { return };
            job
        };
        let (mut events, mut bytes) = (first.events.len(), first.bytes);
        let mut taken = vec![first];
        while let Ok(job) = jobs.try_recv() {
            let fits = events + job.events.len() <= parts.settings.max_batch_size
                && bytes + job.bytes <= BATCH_MAX_BYTES;
            if !fits {
                over = Some(job);
                break;
            }
            events += job.events.len();
            bytes += job.bytes;
            taken.push(job);
        }
        write(&parts, &standing, taken).await;
        standing.take_waiting(events, bytes);
    }
}

/// Records a batch, however long it takes: nothing is skipped, nobody is let go early.
async fn write(parts: &RecorderDeps, standing: &WriterStatus, mut jobs: Vec<Job>) {
    let started = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut attempt = 0;
    let mut heard_of = ReportedHosts::default();
    while !jobs.is_empty() {
        let events: Vec<&RecorderInput> = jobs.iter().flat_map(|job| &job.events).collect();
        let mut fences: Vec<PartitionLease> = jobs.iter().filter_map(|job| job.fence).collect();
        fences.sort_unstable();
        fences.dedup();
        let messages = events.len();
        match batch::record(parts, &events, &fences, &mut heard_of).await {
            Ok(WriteOutcome::Committed) => {
                metrics::batch(messages, started.elapsed());
                let now = parts.clock.now();
                for message in events.iter().filter_map(|event| event.received()) {
                    metrics::waited(now.duration_since(message.received));
                }
                break;
            }
            Ok(WriteOutcome::Fenced(lost)) => {
                // Their new owner has read them again. Dropping the jobs tells who waits.
                let partitions: Vec<i32> = lost.iter().map(|fence| fence.partition).collect();
                metrics::fenced(&partitions);
                jobs.retain(|job| job.fence.is_none_or(|fence| !lost.contains(&fence)));
            }
            Err(error) => {
                attempt += 1;
                standing.hold(&error);
                metrics::batch_held(attempt, messages, &error);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
    if attempt > 0 {
        standing.release();
        metrics::batch_released();
        tracing::info!(attempt, "the held batch is dealt with");
    }
    for job in jobs {
        // Whoever stopped waiting has dropped its end, and will send again.
        let _ = job.done.send(());
    }
}
