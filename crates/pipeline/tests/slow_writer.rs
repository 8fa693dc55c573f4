//! The writer for the slow topic does not delay other clients.

mod support;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::{Instant, sleep};

use domain::Timestamp;
use pipeline::record::{PartitionLease, QueueTopic, Receipt, Recorder, RecorderInput};
use protocol::InboundMessage;
use service::TaskGroup;
use store::{PresenceBatch, StoreError};
use support::{FakeDatabase, recorder_deps};

/// Time that the database needs for a batch of the slow topic.
const SLOW_BATCH_TIME: Duration = Duration::from_millis(100);

/// A database that writes batches of the slow topic slowly.
struct SlowDatabase;

#[async_trait]
impl FakeDatabase for SlowDatabase {
    async fn on_write(
        &self,
        _batch: &PresenceBatch,
        leases: &[PartitionLease],
    ) -> Result<(), StoreError> {
        if leases.iter().any(|lease| lease.queue == QueueTopic::Slow) {
            sleep(SLOW_BATCH_TIME).await;
        }
        Ok(())
    }
}

fn start_recorder(tasks: &TaskGroup) -> Recorder {
    let mut deps = recorder_deps(Arc::new(SlowDatabase));
    deps.config.writers = 2;
    Recorder::start(deps, tasks)
}

/// Submits a message of partition 0. It becomes a dead letter.
fn submit(recorder: &Recorder, queue: QueueTopic) -> Receipt {
    let lease = PartitionLease {
        queue,
        partition: 0,
        epoch: 1,
    };
    let input = RecorderInput::UnknownTopic {
        message: InboundMessage {
            topic: "unknown".to_owned(),
            payload: Bytes::new(),
            retained: false,
            is_operator_replay: false,
            is_last_will: None,
            is_takeover: false,
            received_at: Timestamp::UNIX_EPOCH,
            ingest_stamp: None,
            truncated_from: None,
        },
    };
    recorder.submit_from_partition(lease, vec![recorder.prepare(input)])
}

#[tokio::test(start_paused = true)]
async fn slow_batch_does_not_delay_the_same_partition_of_other_topics() {
    let tasks = TaskGroup::new();
    let recorder = start_recorder(&tasks);
    let started_at = Instant::now();
    let slow_receipt = submit(&recorder, QueueTopic::Slow);
    for queue in [QueueTopic::Ingress, QueueTopic::Answers] {
        let receipt = submit(&recorder, queue);
        receipt.wait_until_durable().await.unwrap();
    }
    assert!(started_at.elapsed() < SLOW_BATCH_TIME / 2);
    slow_receipt.wait_until_durable().await.unwrap();
    assert!(started_at.elapsed() >= SLOW_BATCH_TIME);
    tasks.cancel();
}
