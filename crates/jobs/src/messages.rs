//! Jobs for tracked messages: interrupted sends, retention, and the limit for each organization.

use std::sync::Arc;
use std::time::Duration;

use domain::{Clock, Timestamp, clock};
use service::TaskGroup;
use store::{IdempotencyRepository, MAINTENANCE_CHUNK_ROWS, MessageRepository, StoreError};

use super::{log_deleted_rows, schedule};

/// Maximum pause between two checks. It adds to the time for which a message is shown as `sending` after
/// its process has ended, and an organization can exceed its limit until the next check.
const MAX_CHECK_PAUSE: Duration = Duration::from_secs(5);

/// The jobs for tracked messages.
pub struct MessageJobs {
    /// Tracked messages.
    pub messages: Arc<dyn MessageRepository>,
    /// Idempotency keys.
    pub idempotency: Arc<dyn IdempotencyRepository>,
    /// Time between the last change of a message and the deletion of its record.
    pub retention: Duration,
    /// Maximum number of messages of an organization.
    pub max_per_organization: u64,
}

impl MessageJobs {
    /// Runs the frequent jobs until `tasks` is cancelled.
    pub(super) async fn run(&self, clock: &dyn Clock, max_pause: Duration, tasks: &TaskGroup) {
        let pause = max_pause.min(MAX_CHECK_PAUSE);
        schedule::run_periodically(pause, tasks, || async {
            tokio::select! {
                () = self.check(clock) => {}
                () = tasks.cancelled() => {}
            }
        })
        .await;
    }

    async fn check(&self, clock: &dyn Clock) {
        match self.fail_expired_sends(clock).await {
            Ok(0) => {}
            Ok(count) => tracing::warn!(
                count,
                "processes ended before they reported the result of tracked messages"
            ),
            Err(error) => tracing::warn!(%error, "failed to end interrupted sends"),
        }
        let deleted = self.enforce_limit().await;
        log_deleted_rows("messages above messages.max_per_organization", &deleted);
    }

    /// Ends the attempts of processes that have ended. Returns the number of changed messages.
    async fn fail_expired_sends(&self, clock: &dyn Clock) -> Result<u64, StoreError> {
        let mut changed_count = 0;
        loop {
            let now = clock.now();
            let changed = self
                .messages
                .fail_expired_sends(now, MAINTENANCE_CHUNK_ROWS)
                .await?;
            changed_count += changed;
            if changed < MAINTENANCE_CHUNK_ROWS.into() {
                return Ok(changed_count);
            }
        }
    }

    /// Deletes the oldest messages above the limit. Returns the number of deleted messages.
    async fn enforce_limit(&self) -> Result<u64, StoreError> {
        let mut deleted_count = 0;
        loop {
            let deleted = self
                .messages
                .trim_messages(self.max_per_organization, MAINTENANCE_CHUNK_ROWS)
                .await?;
            deleted_count += deleted;
            if deleted == 0 {
                return Ok(deleted_count);
            }
        }
    }

    /// Deletes expired idempotency keys. Returns the number of deleted keys.
    pub(super) async fn delete_expired_keys(&self) -> Result<u64, StoreError> {
        let mut deleted_count = 0;
        loop {
            let deleted = self
                .idempotency
                .delete_expired_keys(MAINTENANCE_CHUNK_ROWS)
                .await?;
            deleted_count += deleted;
            if deleted < MAINTENANCE_CHUNK_ROWS.into() {
                return Ok(deleted_count);
            }
        }
    }

    /// Deletes expired records. Returns the number of deleted messages.
    pub(super) async fn delete_expired(&self, now: Timestamp) -> Result<u64, StoreError> {
        let expired_before = clock::saturating_sub(now, self.retention);
        let mut deleted_count = 0;
        loop {
            let deleted = self
                .messages
                .delete_messages_before(expired_before, MAINTENANCE_CHUNK_ROWS)
                .await?;
            deleted_count += deleted;
            if deleted < MAINTENANCE_CHUNK_ROWS.into() {
                return Ok(deleted_count);
            }
        }
    }
}
