//! A recorder with a fake database and without a tenant lookup service.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use domain::{ClientId, SystemClock, Tenant, Timestamp};
use pipeline::record::{
    DeadLetterLimits, HandshakeErrorSender, PartitionLease, QueueTopic, RecorderConfig,
    RecorderDeps,
};
use service::ByteBudget;
use store::{PresenceBatch, PresenceRepository, StoreError, StoredState, WriteOutcome};
use tenant::{MassLossDetector, TenantLookup, TenantLookupOutcome};

/// The calls of the recorder that a fake database handles.
#[async_trait]
pub trait FakeDatabase: Send + Sync + 'static {
    /// Called when the recorder loads the states of clients. There are no clients.
    async fn on_load(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Called when the recorder writes a batch.
    async fn on_write(
        &self,
        _batch: &PresenceBatch,
        _leases: &[PartitionLease],
    ) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Returns the dependencies of a recorder with one writer.
pub fn recorder_deps(database: Arc<impl FakeDatabase>) -> RecorderDeps {
    RecorderDeps {
        presence: Arc::new(FakePresence(database)),
        tenant_lookup: Arc::new(UnavailableTenantLookup),
        mass_loss_detector: MassLossDetector::default(),
        inventory_reporter: None,
        source_registrar: None,
        handshake_error_sender: HandshakeErrorSender::channel().0,
        clock: Arc::new(SystemClock),
        message_budget: ByteBudget::new(128 * 1024 * 1024),
        config: RecorderConfig {
            max_batch_size: 100,
            tenant_lookup_timeout: Duration::from_secs(1),
            last_seen_interval: Duration::from_mins(5),
            stale_online_window: Duration::from_mins(10),
            writers: 1,
            dead_letter_limits: DeadLetterLimits {
                max_dead_letters_per_client: 20,
            },
        },
    }
}

struct FakePresence<D>(Arc<D>);

#[async_trait]
impl<D: FakeDatabase> PresenceRepository for FakePresence<D> {
    async fn load_client_states(
        &self,
        _clients: &[ClientId],
    ) -> Result<HashMap<ClientId, StoredState>, StoreError> {
        self.0.on_load().await?;
        Ok(HashMap::new())
    }

    async fn record_batch(
        &self,
        batch: &PresenceBatch,
        leases: &[PartitionLease],
        _now: Timestamp,
    ) -> Result<WriteOutcome, StoreError> {
        match self.0.on_write(batch, leases).await {
            Ok(()) => Ok(WriteOutcome::Committed),
            Err(StoreError::OutdatedBatch) => Ok(WriteOutcome::Conflict),
            Err(error) => Err(error),
        }
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
