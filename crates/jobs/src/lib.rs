//! Periodic jobs on the store (role `updaters`): tenant lookups, deletion of expired rows, the limit
//! on dead letters, and connection counts.
//!
//! `schedule` contains the timer loop. `retention` deletes expired rows. `messages` ends interrupted sends
//! and deletes the records of messages. `event_forwarder` forwards events to Kafka. `liveness_sweep` ends
//! the connections of clients that no longer answer. `tenant_lookups` looks up tenants and refreshes
//! inventory. `open_claims` tracks the rows that a lookup job has claimed.

mod event_forwarder;
mod liveness_sweep;
mod messages;
pub mod metrics;
mod open_claims;
mod retention;
mod schedule;
mod settings;
mod tenant_lookups;

use std::sync::Arc;
use std::time::Duration;

use domain::{Clock, clock};
use service::TaskGroup;
use store::{
    ClientRepository, DeadLetterRepository, MaintenanceRepository, StoreError,
    enforce_dead_letter_limit,
};

use retention::{
    delete_disconnected_clients, delete_expired_dead_letters, delete_expired_history, trim_history,
};

pub use event_forwarder::EventForwarder;
pub use liveness_sweep::{
    LivenessProbe, LivenessSweep, ProbeMethod, SweepConfig, SweepOptions, SweepStop, SweepSummary,
};
pub use messages::MessageJobs;
pub use retention::EventRetention;
pub use settings::{JobSettings, PresenceSettings};
pub use tenant_lookups::{
    LookupJob, LookupJobConfig, LookupJobRunner, RunOptions, RunSummary, StopReason,
};

/// Maximum pause between two checks of the limit on dead letters. The pause is short, because the
/// number of dead letters exceeds the limit until the next check.
const MAX_DEAD_LETTER_CHECK_PAUSE: Duration = Duration::from_secs(10);

/// All periodic jobs, with their dependencies and settings.
pub struct PeriodicJobs {
    /// Deletes expired rows and counts connections.
    pub maintenance: Arc<dyn MaintenanceRepository>,
    /// Deletes expired dead letters, and dead letters above the limit.
    pub dead_letters: Arc<dyn DeadLetterRepository>,
    /// Deletes old history entries.
    pub clients: Arc<dyn ClientRepository>,
    /// Deletes expired events. `None` if no events are deleted.
    pub event_retention: Option<EventRetention>,
    /// Source of the current time.
    pub clock: Arc<dyn Clock>,
    /// Pause between the end of a run of all jobs and the start of the next run.
    pub pause_between_runs: Duration,
    /// Time between the disconnect of a client and the deletion of the client's data.
    pub disconnected_retention: Duration,
    /// Time between the last receipt of a dead letter and the deletion of the dead letter.
    pub dead_letter_retention: Duration,
    /// Maximum number of dead letters of all clients together.
    pub max_dead_letters: u64,
    /// Time between a transition of a client's presence and the deletion of its history entry.
    pub history_retention: Duration,
    /// Maximum number of history entries per client.
    pub max_history_per_client: u32,
    /// Ends interrupted sends of tracked messages, and deletes their records. `None` if there are no
    /// tracked messages.
    pub messages: Option<MessageJobs>,
    /// Runs the jobs that look up tenants.
    pub lookup_job_runner: LookupJobRunner,
}

impl PeriodicJobs {
    /// Runs all jobs immediately, and again after each pause, until `tasks` is cancelled.
    pub async fn run(self, tasks: TaskGroup) {
        let dead_letter_check_pause = self.pause_between_runs.min(MAX_DEAD_LETTER_CHECK_PAUSE);
        tokio::join!(
            schedule::run_periodically(self.pause_between_runs, &tasks, || {
                self.run_all_jobs(&tasks)
            }),
            schedule::run_periodically(dead_letter_check_pause, &tasks, || {
                self.enforce_dead_letter_limit(&tasks)
            }),
            self.run_message_jobs(&tasks),
        );
    }

    /// Runs each job once. A failed job is logged and does not stop the other jobs. Cancellation
    /// interrupts the current job and skips the remaining jobs.
    async fn run_all_jobs(&self, tasks: &TaskGroup) {
        tokio::select! {
            () = self.delete_expired_rows() => {}
            () = tasks.cancelled() => return,
        }
        for job in [LookupJob::Tenantless, LookupJob::InventoryRefresh] {
            self.look_up_tenants(job, tasks).await;
        }
        tokio::select! {
            () = self.update_connection_metrics() => {}
            () = tasks.cancelled() => {}
        }
    }

    async fn run_message_jobs(&self, tasks: &TaskGroup) {
        if let Some(messages) = &self.messages {
            let max_pause = self.pause_between_runs;
            messages.run(&*self.clock, max_pause, tasks).await;
        }
    }

    async fn delete_expired_rows(&self) {
        let now = self.clock.now();
        let disconnected_before = clock::saturating_sub(now, self.disconnected_retention);
        let deleted = delete_disconnected_clients(&*self.maintenance, disconnected_before).await;
        log_deleted_rows("expired disconnected clients", &deleted);
        let received_before = clock::saturating_sub(now, self.dead_letter_retention);
        let deleted = delete_expired_dead_letters(&*self.dead_letters, received_before).await;
        log_deleted_rows("expired dead letters", &deleted);
        let history_before = clock::saturating_sub(now, self.history_retention);
        let deleted = delete_expired_history(&*self.clients, history_before).await;
        log_deleted_rows("expired presence history", &deleted);
        let deleted = trim_history(&*self.clients, self.max_history_per_client).await;
        log_deleted_rows(
            "presence history above presence.history_per_client",
            &deleted,
        );
        if let Some(event_retention) = &self.event_retention {
            let deleted = event_retention.delete_expired_events(now).await;
            log_deleted_rows("expired events", &deleted);
        }
        if let Some(messages) = &self.messages {
            let deleted = messages.delete_expired(now).await;
            log_deleted_rows("expired messages", &deleted);
            let deleted = messages.delete_expired_keys().await;
            log_deleted_rows("expired idempotency keys", &deleted);
        }
    }

    async fn enforce_dead_letter_limit(&self, tasks: &TaskGroup) {
        tokio::select! {
            deleted = enforce_dead_letter_limit(&*self.dead_letters, self.max_dead_letters) => {
                log_deleted_rows("dead letters above dead_letters.max_total", &deleted);
            }
            () = tasks.cancelled() => {}
        }
    }

    async fn look_up_tenants(&self, job: LookupJob, tasks: &TaskGroup) {
        let options = RunOptions::default();
        let job_name = job.name();
        let run = self
            .lookup_job_runner
            .run_until(job, options, &|_| {}, tasks.cancelled());
        match run.await {
            Ok(None) => {}
            Ok(Some(summary)) if summary == RunSummary::default() => {}
            Ok(Some(summary)) if summary.is_failure() => {
                tracing::warn!(job = job_name, %summary, "tenant lookup job incomplete");
            }
            Ok(Some(summary)) => {
                tracing::info!(job = job_name, %summary, "tenant lookup job finished");
            }
            Err(error) => tracing::warn!(job = job_name, %error, "tenant lookup job failed"),
        }
    }

    async fn update_connection_metrics(&self) {
        let max_attempts = self.lookup_job_runner.config.max_attempts;
        let tenantless_counts = self
            .lookup_job_runner
            .lookup_queue
            .count_tenantless_clients(max_attempts)
            .await;
        let tenant_count = self.maintenance.count_connections_with_tenant().await;
        // If the store is unavailable, the metrics keep their previous values.
        if let (Ok(tenantless_counts), Ok(tenant_count)) = (tenantless_counts, tenant_count) {
            let now = self.clock.now();
            let oldest_lookup_age = tenantless_counts
                .oldest_lookup_at
                .map(|oldest| now.duration_since(oldest));
            metrics::set_connection_counts(
                tenant_count,
                tenantless_counts.pending_clients,
                tenantless_counts.exhausted_clients,
                oldest_lookup_age,
            );
        }
    }
}

fn log_deleted_rows(rows: &'static str, deleted: &Result<u64, StoreError>) {
    match deleted {
        Ok(0) => {}
        Ok(count) => tracing::info!(rows, count, "deleted rows"),
        Err(error) => tracing::warn!(rows, %error, "failed to delete rows"),
    }
}
