//! The two jobs that look up tenants: one for hosts whose inventory report must be refreshed, one
//! for tenantless clients.
//!
//! A run claims due rows in chunks until no due rows remain. While the run looks up one chunk, it
//! claims the next chunk and saves the previous chunk, so lookups do not wait for the database.
//! Claims prevent two processes from working on the same row. A claim ends with the result of its
//! row. A row that changed after its claim is not overwritten.
//!
//! `inventory_reports` reads the facts of the hosts after their lookups and reports the hosts.
//! `stop_reason` decides after each chunk whether the run continues. `summary` contains the counts of
//! a run.

mod inventory_reports;
mod stop_reason;
mod summary;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::time::Instant;

use super::metrics;
use super::open_claims::OpenClaims;
use domain::{ClientId, Clock, Timestamp, clock};
use integrations::inventory::reporter::{InventoryReporter, ReportOutcome};
use store::{
    ClaimedConnection, LookupOutcome, LookupQueueRepository, LookupReason, LookupResult, StoreError,
};
use tenant::{self, FoundTenant, MassLossCounter, TenantLookup, TenantLookupOutcome};

use inventory_reports::report_to_inventory;
pub use stop_reason::StopReason;
use stop_reason::stop_reason_after_chunk;
pub use summary::RunSummary;

/// Maximum number of rows per chunk.
const MAX_CHUNK_ROWS: u32 = 2000;
/// Duration of a claim, unless the run releases it. The claim must not end before the results of the
/// chunk are saved.
const CLAIM_DURATION: Duration = Duration::from_mins(15);

/// One of the two lookup jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupJob {
    /// Reports hosts to inventory again, before inventory marks them stale.
    InventoryRefresh,
    /// Looks up the tenants of tenantless clients.
    Tenantless,
}

impl LookupJob {
    /// Returns the job's name in metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::InventoryRefresh => "inventory_refresh",
            Self::Tenantless => "tenantless",
        }
    }
}

/// Runs the two lookup jobs.
#[derive(Clone)]
pub struct LookupJobRunner {
    /// Rows that are due for a lookup.
    pub lookup_queue: Arc<dyn LookupQueueRepository>,
    /// Looks up the tenants.
    pub tenant_lookup: Arc<dyn TenantLookup>,
    /// Reports hosts to inventory. `None` if inventory is disabled.
    pub inventory: Option<InventoryReporter>,
    /// Source of the current time.
    pub clock: Arc<dyn Clock>,
    /// Limits and intervals of the jobs.
    pub config: LookupJobConfig,
}

/// Limits and intervals of the lookup jobs.
#[derive(Debug, Clone)]
pub struct LookupJobConfig {
    /// Maximum number of lookups in flight.
    pub max_concurrency: usize,
    /// Timeout of one lookup.
    pub lookup_timeout: Duration,
    /// Time after which a host is reported to inventory again.
    pub inventory_refresh_after: Duration,
    /// Minimum time between two lookups of a tenantless client.
    pub lookup_retry_interval: Duration,
    /// Maximum number of "not found" results. After this number, a tenantless client is no longer
    /// looked up.
    pub max_attempts: u32,
}

/// Options of one run of a lookup job.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunOptions {
    /// Maximum number of rows that the run processes. `None` processes all due rows.
    pub max_rows: Option<u64>,
    /// Applies "not found" results even if these results clear the tenants of many clients.
    pub allow_mass_loss: bool,
}

/// State of a run that determines which rows the run claims next.
struct RunCursor {
    /// Criteria that select the due rows, computed at the start of the run. The next run processes
    /// rows that become due during this run.
    due_criteria: LookupReason,
    /// Start of the run. Rows that were claimed or released after this time are not claimed again,
    /// so a run processes each row at most once.
    started_at: Timestamp,
    /// Number of rows that the run may still claim.
    remaining_rows: u64,
}

/// Claimed rows with their lookup outcomes.
type LookedUpRows = Vec<(ClaimedConnection, TenantLookupOutcome)>;

impl LookupJobRunner {
    /// Returns the criteria that select the rows that are due now.
    #[must_use]
    pub fn due_criteria(&self, job: LookupJob) -> LookupReason {
        let now = self.clock.now();
        match job {
            LookupJob::InventoryRefresh => LookupReason::InventoryRefresh {
                reported_before: clock::saturating_sub(now, self.config.inventory_refresh_after),
            },
            LookupJob::Tenantless => LookupReason::MissingTenant {
                looked_up_before: clock::saturating_sub(now, self.config.lookup_retry_interval),
                max_attempts: self.config.max_attempts,
            },
        }
    }

    /// Runs a job until no row is due or the run must stop. Calls `on_progress` after each chunk.
    ///
    /// # Errors
    /// If the database is unavailable.
    pub async fn run(
        &self,
        job: LookupJob,
        options: RunOptions,
        on_progress: &(dyn Fn(&RunSummary) + Sync),
    ) -> Result<RunSummary, StoreError> {
        let never = std::future::pending();
        let summary = self.run_until(job, options, on_progress, never).await?;
        Ok(summary.unwrap_or_default())
    }

    /// Like [`Self::run`], but returns `None` when `stop` completes before the run has ended.
    ///
    /// # Errors
    /// If the database is unavailable.
    pub async fn run_until(
        &self,
        job: LookupJob,
        options: RunOptions,
        on_progress: &(dyn Fn(&RunSummary) + Sync),
        stop: impl Future<Output = ()> + Send,
    ) -> Result<Option<RunSummary>, StoreError> {
        let claims = OpenClaims::default();
        let result = tokio::select! {
            biased;
            () = stop => Ok(None),
            result = self.process_due_rows(job, options, on_progress, &claims) => result.map(Some),
        };
        // After an error or a stop, the run holds claims of rows without a result. Other runs would
        // skip these rows until the claims end by themselves.
        let lookup_queue = &*self.lookup_queue;
        let released = claims.release_all(lookup_queue, self.clock.now()).await;
        let summary = result?;
        released?;
        if let Some(summary) = &summary {
            metrics::count_job_run(job.name(), summary.is_failure());
        }
        Ok(summary)
    }

    async fn process_due_rows(
        &self,
        job: LookupJob,
        options: RunOptions,
        on_progress: &(dyn Fn(&RunSummary) + Sync),
        claims: &OpenClaims,
    ) -> Result<RunSummary, StoreError> {
        let mut cursor = RunCursor {
            due_criteria: self.due_criteria(job),
            started_at: self.clock.now(),
            remaining_rows: options.max_rows.unwrap_or(u64::MAX),
        };
        let mut summary = RunSummary::default();
        let mut loss_counter = MassLossCounter::default();
        let mut looked_up_rows = LookedUpRows::new();
        let mut chunk = self.claim_chunk(&mut cursor, claims).await?;
        while !chunk.is_empty() {
            let (outcomes, next_chunk, save_result) = tokio::join!(
                self.look_up(chunk),
                self.claim_chunk(&mut cursor, claims),
                self.report_and_save(looked_up_rows, &mut summary, claims)
            );
            save_result?;
            (looked_up_rows, chunk) = (outcomes, next_chunk?);
            summary.looked_up_clients += looked_up_rows.len() as u64;
            summary.stop_reason = stop_reason_after_chunk(
                &mut looked_up_rows,
                &mut loss_counter,
                options.allow_mass_loss,
            );
            if summary.stop_reason != StopReason::Done {
                // The rows of the next chunk stay unchanged. Their claims end with the run.
                chunk.clear();
            }
            on_progress(&summary);
        }
        self.report_and_save(looked_up_rows, &mut summary, claims)
            .await?;
        Ok(summary)
    }

    async fn claim_chunk(
        &self,
        cursor: &mut RunCursor,
        claims: &OpenClaims,
    ) -> Result<Vec<ClaimedConnection>, StoreError> {
        let limit = u32::try_from(cursor.remaining_rows).unwrap_or(MAX_CHUNK_ROWS);
        let limit = limit.min(MAX_CHUNK_ROWS);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let claim_until = self.clock.now() + CLAIM_DURATION;
        let chunk = self
            .lookup_queue
            .claim_for_lookup(cursor.due_criteria, limit, cursor.started_at, claim_until)
            .await?;
        claims.add(&chunk, claim_until);
        cursor.remaining_rows -= chunk.len() as u64;
        Ok(chunk)
    }

    /// Looks up the tenant of every client in the chunk.
    async fn look_up(&self, chunk: Vec<ClaimedConnection>) -> LookedUpRows {
        let lookups = futures::stream::iter(chunk).map(|row| async move {
            let deadline = Instant::now() + self.config.lookup_timeout;
            let outcome = self.tenant_lookup.lookup(&row.client_id, deadline).await;
            tenant::metrics::count_tenant_lookup(outcome.status());
            (row, outcome)
        });
        lookups
            .buffer_unordered(self.config.max_concurrency.max(1))
            .collect()
            .await
    }

    /// Sends inventory reports for the hosts whose lookup found a tenant. Then saves the results of
    /// all lookups.
    async fn report_and_save(
        &self,
        looked_up_rows: LookedUpRows,
        summary: &mut RunSummary,
        claims: &OpenClaims,
    ) -> Result<(), StoreError> {
        if looked_up_rows.is_empty() {
            return Ok(());
        }
        let now = self.clock.now();
        let reports = match &self.inventory {
            Some(inventory) => {
                report_to_inventory(inventory, &*self.lookup_queue, &looked_up_rows, now).await?
            }
            None => vec![None; looked_up_rows.len()],
        };
        let mut results = Vec::with_capacity(looked_up_rows.len());
        for ((row, outcome), report) in looked_up_rows.into_iter().zip(reports) {
            summary.count_lookup(outcome.status());
            match report {
                Some(ReportOutcome::Delivered) => summary.delivered_reports += 1,
                Some(ReportOutcome::Pending) => summary.pending_reports += 1,
                Some(ReportOutcome::NotEligible) | None => {}
            }
            let is_delivered = report == Some(ReportOutcome::Delivered);
            results.push(LookupResult {
                client_id: row.client_id,
                row_version: row.row_version,
                outcome: match outcome {
                    TenantLookupOutcome::Found(FoundTenant { tenant, .. }) => {
                        LookupOutcome::Found {
                            tenant,
                            reported_to_inventory_at: is_delivered.then_some(now),
                            inventory_eligible: report != Some(ReportOutcome::NotEligible),
                            report_failed: report == Some(ReportOutcome::Pending),
                        }
                    }
                    TenantLookupOutcome::NotFound => LookupOutcome::NotFound,
                    TenantLookupOutcome::Unavailable => LookupOutcome::Unavailable,
                },
            });
        }
        let expected_rows = results
            .iter()
            .filter(|result| result.outcome != LookupOutcome::Unavailable)
            .count() as u64;
        let written_rows = self.lookup_queue.save_lookup_results(&results, now).await?;
        summary.conflicting_rows += expected_rows.saturating_sub(written_rows);
        // The results of rows that have changed were not saved, so their claims are still open.
        let clients: Vec<ClientId> = results.into_iter().map(|result| result.client_id).collect();
        claims.release(&clients, &*self.lookup_queue, now).await
    }
}
