//! A batch whose rows another writer changes again and again.

mod support;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use domain::Timestamp;
use pipeline::record::{PartitionLease, Receipt, Recorder, RecorderInput};
use protocol::InboundMessage;
use service::TaskGroup;
use store::{PresenceBatch, StoreError};
use support::{FakeDatabase, recorder_deps};

/// Rejects the first batches, because they are outdated.
struct ConflictingDatabase {
    conflicts: usize,
    attempts: Mutex<Vec<Instant>>,
}

impl ConflictingDatabase {
    fn new(conflicts: usize) -> Arc<Self> {
        let attempts = Mutex::default();
        Arc::new(Self {
            conflicts,
            attempts,
        })
    }

    fn attempts(&self) -> Vec<Instant> {
        self.attempts.lock().clone()
    }
}

#[async_trait]
impl FakeDatabase for ConflictingDatabase {
    async fn on_write(&self, _: &PresenceBatch, _: &[PartitionLease]) -> Result<(), StoreError> {
        let mut attempts = self.attempts.lock();
        attempts.push(Instant::now());
        if attempts.len() <= self.conflicts {
            return Err(StoreError::OutdatedBatch);
        }
        Ok(())
    }
}

/// Submits a message, which becomes a dead letter.
fn submit(recorder: &Recorder) -> Receipt {
    let message = InboundMessage {
        topic: "unknown".to_owned(),
        payload: Bytes::new(),
        retained: false,
        is_operator_replay: false,
        is_last_will: None,
        is_takeover: false,
        received_at: Timestamp::UNIX_EPOCH,
        ingest_stamp: None,
        truncated_from: None,
    };
    recorder.submit(RecorderInput::UnknownTopic { message })
}

#[tokio::test(start_paused = true)]
async fn attempts_after_the_second_conflict_have_growing_pauses() {
    let tasks = TaskGroup::new();
    let database = ConflictingDatabase::new(5);
    let recorder = Recorder::start(recorder_deps(database.clone()), &tasks);
    submit(&recorder).wait_until_durable().await.unwrap();
    let attempts = database.attempts();
    let pauses: Vec<Duration> = attempts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(pauses.len(), 5);
    assert!(pauses[0] < Duration::from_millis(5), "{pauses:?}");
    assert!(pauses[1] >= Duration::from_millis(10), "{pauses:?}");
    assert!(pauses[4] >= Duration::from_millis(80), "{pauses:?}");
    tasks.cancel();
}

#[tokio::test(start_paused = true)]
async fn batch_with_conflicts_is_tried_once_more_after_the_shutdown_has_started() {
    let tasks = TaskGroup::new();
    let database = ConflictingDatabase::new(usize::MAX);
    let recorder = Recorder::start(recorder_deps(database.clone()), &tasks);
    let receipt = submit(&recorder);
    while database.attempts().len() < 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let attempts_before = database.attempts().len();
    tasks.cancel();
    receipt.wait_until_durable().await.unwrap_err();
    assert_eq!(database.attempts().len(), attempts_before + 1);
}
