//! The writer for the slow topic does not delay other clients.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::{Instant, sleep};

use domain::{ClientId, SystemClock, Tenant, Timestamp};
use pipeline::record::{
    DeadLetterLimits, HandshakeErrorSender, PartitionLease, QueueTopic, Receipt, Recorder,
    RecorderConfig, RecorderDeps, RecorderInput,
};
use protocol::InboundMessage;
use service::{ByteBudget, TaskGroup};
use store::{PresenceBatch, PresenceRepository, StoreError, StoredState, WriteOutcome};
use tenant::{MassLossDetector, TenantLookup, TenantLookupOutcome};

/// Time that the database needs for a batch of the slow topic.
const SLOW_BATCH_TIME: Duration = Duration::from_millis(100);

/// A database that writes batches of the slow topic slowly.
struct SlowRepository;

#[async_trait]
impl PresenceRepository for SlowRepository {
    async fn load_client_states(
        &self,
        _clients: &[ClientId],
    ) -> Result<HashMap<ClientId, StoredState>, StoreError> {
        Ok(HashMap::new())
    }

    async fn record_batch(
        &self,
        _batch: &PresenceBatch,
        leases: &[PartitionLease],
        _now: Timestamp,
    ) -> Result<WriteOutcome, StoreError> {
        if leases.iter().any(|lease| lease.queue == QueueTopic::Slow) {
            sleep(SLOW_BATCH_TIME).await;
        }
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

fn start_recorder(tasks: &TaskGroup) -> Recorder {
    let deps = RecorderDeps {
        presence: Arc::new(SlowRepository),
        tenant_lookup: Arc::new(UnavailableTenantLookup),
        mass_loss_detector: MassLossDetector::default(),
        inventory_reporter: None,
        source_registrar: None,
        handshake_error_sender: HandshakeErrorSender::channel().0,
        clock: Arc::new(SystemClock),
        message_budget: ByteBudget::new(1024 * 1024),
        config: RecorderConfig {
            max_batch_size: 100,
            tenant_lookup_timeout: Duration::from_secs(1),
            stale_online_window: Duration::from_mins(10),
            writers: 2,
            dead_letter_limits: DeadLetterLimits {
                max_dead_letters_per_client: 20,
            },
        },
    };
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
