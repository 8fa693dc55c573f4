//! The recorder at shutdown while the database is unavailable.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use domain::Timestamp;
use pipeline::record::{NotRecorded, PartitionLease, QueueTopic, Recorder, RecorderInput};
use protocol::{DialectSettings, InboundMessage, TopicScheme};
use service::TaskGroup;
use store::StoreError;
use support::{FakeDatabase, recorder_deps};

/// A database that is unavailable until the recorder has given up the first batch at shutdown.
struct RecoveringDatabase {
    is_shutting_down: AtomicBool,
    calls_during_shutdown: AtomicUsize,
}

#[async_trait]
impl FakeDatabase for RecoveringDatabase {
    async fn on_load(&self) -> Result<(), StoreError> {
        let is_shutting_down = self.is_shutting_down.load(Ordering::Relaxed);
        if is_shutting_down && self.calls_during_shutdown.fetch_add(1, Ordering::Relaxed) > 0 {
            return Ok(());
        }
        Err(StoreError::Unavailable("no connection".into()))
    }
}

fn input() -> RecorderInput {
    let topics = TopicScheme::new(vec!["p".to_owned()], &DialectSettings::default());
    let message = InboundMessage {
        topic: "p/a/control/out".to_owned(),
        payload: Bytes::from_static(
            br#"{"type":"connection-status","content":{"state":"offline"}}"#,
        ),
        retained: false,
        is_operator_replay: false,
        is_last_will: None,
        is_takeover: false,
        received_at: Timestamp::UNIX_EPOCH,
        ingest_stamp: None,
        truncated_from: None,
    };
    let topic = topics.parse(&message.topic).unwrap();
    RecorderInput::non_kafka_message(topic, message)
}

#[tokio::test(start_paused = true)]
async fn no_later_message_is_recorded_after_a_batch_that_was_given_up() {
    let database = Arc::new(RecoveringDatabase {
        is_shutting_down: AtomicBool::new(false),
        calls_during_shutdown: AtomicUsize::new(0),
    });
    let mut deps = recorder_deps(database.clone());
    deps.config.max_batch_size = 1;
    let tasks = TaskGroup::new();
    let recorder = Recorder::start(deps, &tasks);
    let lease = PartitionLease {
        queue: QueueTopic::Ingress,
        partition: 0,
        epoch: 1,
    };
    let submit = || recorder.submit_from_partition(lease, vec![recorder.prepare(input())]);
    // Each receipt belongs to a batch of its own, because a batch has at most one message.
    let receipts = [submit(), submit(), submit()];
    tokio::time::sleep(Duration::from_secs(1)).await;
    database.is_shutting_down.store(true, Ordering::Relaxed);
    tasks.cancel();
    for receipt in receipts {
        assert_eq!(receipt.wait_until_durable().await, Err(NotRecorded));
    }
}
