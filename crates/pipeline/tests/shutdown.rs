//! The recorder at shutdown while the database is unavailable.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;

use domain::{ClientId, SystemClock, Tenant, Timestamp};
use pipeline::record::{
    DeadLetterLimits, HandshakeErrorSender, NotRecorded, PartitionLease, QueueTopic, Recorder,
    RecorderConfig, RecorderDeps, RecorderInput,
};
use protocol::{DialectSettings, InboundMessage, TopicScheme};
use service::{ByteBudget, TaskGroup};
use store::{PresenceBatch, PresenceRepository, StoreError, StoredState, WriteOutcome};
use tenant::{MassLossDetector, TenantLookup, TenantLookupOutcome};

/// A database that is unavailable until the recorder has given up the first batch at shutdown.
struct RecoveringDatabase {
    is_shutting_down: AtomicBool,
    calls_during_shutdown: AtomicUsize,
}

#[async_trait]
impl PresenceRepository for RecoveringDatabase {
    async fn load_client_states(
        &self,
        _clients: &[ClientId],
    ) -> Result<HashMap<ClientId, StoredState>, StoreError> {
        let is_shutting_down = self.is_shutting_down.load(Ordering::Relaxed);
        if is_shutting_down && self.calls_during_shutdown.fetch_add(1, Ordering::Relaxed) > 0 {
            return Ok(HashMap::new());
        }
        Err(StoreError::Unavailable("no connection".into()))
    }

    async fn record_batch(
        &self,
        _batch: &PresenceBatch,
        _leases: &[PartitionLease],
        _now: Timestamp,
    ) -> Result<WriteOutcome, StoreError> {
        Ok(WriteOutcome::Committed)
    }

    async fn acquire_partitions(
        &self,
        _queue: QueueTopic,
        _partitions: &[i32],
        _new_owner: &str,
    ) -> Result<Vec<PartitionLease>, StoreError> {
        Ok(Vec::new())
    }

    async fn restore_tenants(
        &self,
        _clients: &[(ClientId, Tenant)],
        _now: Timestamp,
    ) -> Result<u64, StoreError> {
        Ok(0)
    }
}

struct UnavailableTenantLookup;

#[async_trait]
impl TenantLookup for UnavailableTenantLookup {
    async fn lookup(&self, _client: &ClientId, _deadline: Instant) -> TenantLookupOutcome {
        TenantLookupOutcome::Unavailable
    }

    async fn check_availability(&self) -> Result<String, String> {
        Err("unavailable".to_owned())
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
    let deps = RecorderDeps {
        presence: database.clone(),
        tenant_lookup: Arc::new(UnavailableTenantLookup),
        mass_loss_detector: MassLossDetector::default(),
        inventory_reporter: None,
        source_registrar: None,
        handshake_error_sender: HandshakeErrorSender::channel().0,
        clock: Arc::new(SystemClock),
        message_budget: ByteBudget::new(128 * 1024 * 1024),
        config: RecorderConfig {
            max_batch_size: 1,
            tenant_lookup_timeout: Duration::from_secs(1),
            stale_online_window: Duration::from_mins(10),
            writers: 1,
            dead_letter_limits: DeadLetterLimits {
                max_dead_letters_per_client: 20,
            },
        },
    };
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
