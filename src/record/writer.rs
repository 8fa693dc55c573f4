//! A writer: takes what has gathered, has it recorded, lets the waiting go.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::{Event, Parts, batch};
use crate::shutdown::Stopper;
use crate::store::StoreError;
use crate::telemetry::health::Verdict;
use crate::telemetry::metrics;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// An event and who waits for it.
pub(super) struct Job {
    pub event: Event,
    pub done: oneshot::Sender<()>,
}

/// How much waits to be written, which writers hold a batch, and why.
#[derive(Default)]
pub(super) struct Standing {
    waiting: AtomicUsize,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    writers: HashSet<tokio::task::Id>,
    why: String,
}

impl Standing {
    pub fn verdict(&self) -> Verdict {
        let held = self.held.lock();
        if held.writers.is_empty() {
            Ok(())
        } else {
            Err(format!("holding messages: {}", held.why))
        }
    }

    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub fn add_waiting(&self, events: usize) {
        self.waiting.fetch_add(events, Ordering::Relaxed);
    }

    fn take_waiting(&self, events: usize) {
        self.waiting.fetch_sub(events, Ordering::Relaxed);
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
    parts: Arc<Parts>,
    standing: Arc<Standing>,
    mut jobs: mpsc::UnboundedReceiver<Job>,
    stopper: Stopper,
) {
    let most = parts.settings.batch_max;
    let mut taken = Vec::with_capacity(most);
    loop {
        let count = tokio::select! {
            count = jobs.recv_many(&mut taken, most) => count,
            // Once closed, what was taken in before still comes out, then nothing.
            () = stopper.asked(), if !jobs.is_closed() => { jobs.close(); continue }
        };
        if count == 0 {
            return;
        }
        let (events, waiting): (Vec<_>, Vec<_>) =
            taken.drain(..).map(|job| (job.event, job.done)).unzip();
        write(&parts, &standing, events).await;
        standing.take_waiting(count);
        for done in waiting {
            // Whoever stopped waiting has dropped its end, and will send again.
            let _ = done.send(());
        }
    }
}

/// Records a batch, however long it takes: nothing is skipped, nobody is let go early.
async fn write(parts: &Parts, standing: &Standing, events: Vec<Event>) {
    let started = Instant::now();
    let messages = events.len();
    let folding = batch::Folding::parse(&parts.topics, events);
    let mut pause = FIRST_PAUSE;
    let mut attempt = 0;
    while let Err(error) = folding.record(parts).await {
        attempt += 1;
        standing.hold(&error);
        metrics::batch_held(attempt, messages, &error);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    if attempt > 0 {
        standing.release();
        metrics::batch_released();
        tracing::info!(attempt, messages, "the held batch is written");
    }
    metrics::batch(messages, started.elapsed());
}
