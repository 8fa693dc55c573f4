//! Proves that the recorder accepts messages of any dialect in the topic scheme, and stores the name
//! of the dialect.

#[path = "../../protocol/tests/line/mod.rs"]
mod line;
mod support;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::json;

use broker::MessageSink as _;
use domain::Timestamp;
use line::LineDialect;
use pipeline::ingest::embedded_broker::RecorderSink;
use pipeline::record::{
    HandshakeErrorReceiver, HandshakeErrorSender, PartitionLease, Recorder, RecorderDeps,
};
use protocol::{Dialect, DialectSettings, InboundMessage, TopicScheme};
use service::TaskGroup;
use store::{PresenceBatch, StoreError};
use support::{FakeDatabase, recorder_deps};

const DIALECTS: &[&dyn Dialect] = &[&LineDialect];

/// Stores the batches that the recorder writes.
#[derive(Default)]
struct StoredBatches {
    batches: Mutex<Vec<PresenceBatch>>,
}

#[async_trait]
impl FakeDatabase for StoredBatches {
    async fn on_write(
        &self,
        batch: &PresenceBatch,
        _leases: &[PartitionLease],
    ) -> Result<(), StoreError> {
        self.batches.lock().push(batch.clone());
        Ok(())
    }
}

struct Fixture {
    sink: RecorderSink,
    repository: Arc<StoredBatches>,
    handshake_errors: HandshakeErrorReceiver,
    tasks: TaskGroup,
}

impl Fixture {
    fn new() -> Self {
        let repository = Arc::new(StoredBatches::default());
        let (handshake_error_sender, handshake_errors) = HandshakeErrorSender::channel();
        let deps = RecorderDeps {
            handshake_error_sender,
            ..recorder_deps(repository.clone())
        };
        let tasks = TaskGroup::new();
        let topics =
            TopicScheme::with_dialects(DIALECTS, vec!["p".into()], &DialectSettings::default());
        Self {
            sink: RecorderSink::new(Recorder::start(deps, &tasks), topics),
            repository,
            handshake_errors,
            tasks,
        }
    }

    /// Records a line of the client `c`, and returns the batch that contains the line.
    async fn record(&self, line: &'static str) -> PresenceBatch {
        let message = self.sink.prepare(InboundMessage {
            topic: "p/c/line/out".to_owned(),
            payload: Bytes::from_static(line.as_bytes()),
            retained: false,
            is_operator_replay: false,
            is_last_will: None,
            is_takeover: false,
            received_at: Timestamp::now(),
            ingest_stamp: None,
            truncated_from: None,
        });
        assert!(message.submit().wait_until_durable().await);
        self.repository.batches.lock().pop().unwrap()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

#[tokio::test]
async fn online_message_is_stored_with_the_name_of_its_dialect() {
    let fixture = Fixture::new();
    let batch = fixture.record("online m1 a.example").await;
    let upsert = &batch.upserts[0];
    assert_eq!(upsert.client_id.as_str(), "c");
    assert_eq!(upsert.dialect.as_str(), "line");
    assert_eq!(upsert.topic_prefix, "p");
    assert_eq!(upsert.info.canonical_facts, json!({"fqdn": "a.example"}));
}

#[tokio::test]
async fn rejected_message_becomes_a_dead_letter() {
    let batch = Fixture::new().record("nonsense").await;
    assert_eq!(batch.dead_letters.len(), 1);
    assert!(batch.upserts.is_empty());
}

#[tokio::test]
async fn invalid_handshake_causes_a_handshake_error_with_the_topic_of_the_handshake() {
    let mut fixture = Fixture::new();
    let batch = fixture.record("online m1 ").await;
    assert_eq!(batch.dead_letters.len(), 1);
    let (topic, error) = fixture.handshake_errors.recv().await.unwrap();
    assert_eq!(topic.channel, line::FROM_CLIENT);
    assert_eq!(error.in_response_to.unwrap().as_str(), "m1");
}
