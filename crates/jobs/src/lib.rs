//! Periodic jobs on the store (role `updaters`): tenant lookups, deletion of expired rows, store
//! maintenance and connection counts.
//!
//! `schedule` contains the timer loop. `retention` deletes expired rows. `tenant_lookups` looks up
//! tenants and refreshes inventory.

pub mod metrics;
mod retention;
mod schedule;
mod settings;
mod tenant_lookups;

use std::sync::Arc;
use std::time::Duration;

use domain::{Clock, clock};
use service::TaskGroup;
use store::{DeadLetterRepository, MaintenanceRepository};

use retention::{DeletedRows, delete_expired_rows};

pub use settings::JobSettings;
pub use tenant_lookups::{
    LookupJob, LookupJobConfig, LookupJobRunner, RunOptions, RunSummary, StopReason,
};

/// All periodic jobs, with their dependencies and settings.
pub struct PeriodicJobs {
    /// Deletes expired rows, compacts tables and counts connections.
    pub maintenance: Arc<dyn MaintenanceRepository>,
    /// Deletes expired dead letters.
    pub dead_letters: Arc<dyn DeadLetterRepository>,
    /// Source of the current time.
    pub clock: Arc<dyn Clock>,
    /// Pause between the end of a run of all jobs and the start of the next run.
    pub pause_between_runs: Duration,
    /// Time between the disconnect of a client and the deletion of the client's data.
    pub disconnected_retention: Duration,
    /// Time between the last receipt of a dead letter and the deletion of the dead letter.
    pub dead_letter_retention: Duration,
    /// Runs the jobs that look up tenants.
    pub lookup_job_runner: LookupJobRunner,
}

impl PeriodicJobs {
    /// Runs all jobs immediately, and again after each pause, until `tasks` is cancelled.
    pub async fn run(self, tasks: TaskGroup) {
        schedule::run_periodically(self.pause_between_runs, &tasks, || {
            self.run_all_jobs(&tasks)
        })
        .await;
    }

    /// Runs each job once. A failed job is logged and does not stop the other jobs. Cancellation
    /// interrupts a tenant lookup job and skips the remaining jobs.
    async fn run_all_jobs(&self, tasks: &TaskGroup) {
        self.delete_expired_rows().await;
        for job in [LookupJob::Tenantless, LookupJob::InventoryRefresh] {
            tokio::select! {
                () = self.look_up_tenants(job) => {}
                () = tasks.cancelled() => return,
            }
        }
        if let Err(error) = self.maintenance.compact().await {
            tracing::warn!(%error, "compaction of the database failed");
        }
        self.update_connection_metrics().await;
    }

    async fn delete_expired_rows(&self) {
        let now = self.clock.now();
        let disconnected_before = clock::saturating_sub(now, self.disconnected_retention);
        let dead_letters_received_before = clock::saturating_sub(now, self.dead_letter_retention);
        let deleted_rows = delete_expired_rows(
            &*self.maintenance,
            &*self.dead_letters,
            disconnected_before,
            dead_letters_received_before,
        );
        match deleted_rows.await {
            Ok(deleted) if deleted == DeletedRows::default() => {}
            Ok(DeletedRows {
                disconnected_clients,
                dead_letters,
            }) => tracing::info!(disconnected_clients, dead_letters, "deleted expired rows"),
            Err(error) => tracing::warn!(%error, "failed to delete expired rows"),
        }
    }

    async fn look_up_tenants(&self, job: LookupJob) {
        let options = RunOptions::default();
        let job_name = job.name();
        match self.lookup_job_runner.run(job, options, &|_| {}).await {
            Ok(summary) if summary == RunSummary::default() => {}
            Ok(summary) if summary.is_failure() => {
                tracing::warn!(job = job_name, %summary, "tenant lookup job incomplete");
            }
            Ok(summary) => tracing::info!(job = job_name, %summary, "tenant lookup job finished"),
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
