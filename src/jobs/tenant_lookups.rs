//! The two jobs that look up tenants: one for hosts whose inventory report must be refreshed, one
//! for tenantless clients.
//!
//! A run claims due rows in chunks until none is left. It looks up one chunk while it claims the
//! next and saves the previous one, so the gateway never waits for the database. Claims prevent two
//! processes from working on the same row. A row that changed after its claim is not overwritten.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::time::Instant;

use crate::domain::{Clock, LookupStatus, Timestamp, clock};
use crate::integrations::inventory::message::Host;
use crate::integrations::inventory::reporter::{InventoryReporter, ReportOutcome};
use crate::store::{
    ClaimedConnection, LookupOutcome, LookupReason, LookupResult, Store, StoreError,
};
use crate::telemetry::metrics;
use crate::tenant::{FoundTenant, MassLossCounter, TenantLookup, TenantLookupOutcome};

/// Maximum number of rows per chunk.
const CHUNK_ROWS: u32 = 2000;
/// Duration of a claim. Longer than a chunk can take.
const CLAIM_DURATION: Duration = Duration::from_mins(15);

/// One of the two lookup jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupJob {
    /// Reports hosts to inventory again, before inventory marks them stale.
    InventoryRefresh,
    /// Looks up clients without a tenant.
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

/// Runs the lookup jobs.
#[derive(Clone)]
pub struct TenantLookupJob {
    /// The store with the connections.
    pub store: Arc<dyn Store>,
    /// Looks up the tenants.
    pub tenant_lookup: Arc<dyn TenantLookup>,
    /// Reports hosts to inventory. `None` if inventory is disabled.
    pub inventory: Option<InventoryReporter>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Limits and intervals.
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
    pub refresh_after: Duration,
    /// Minimum time between two lookups of a tenantless client.
    pub retry_interval: Duration,
    /// Number of "not found" results after which a tenantless client is no longer looked up.
    pub max_attempts: u32,
}

/// Options of one run.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunOptions {
    /// Maximum number of rows. `None` processes all due rows.
    pub limit: Option<u64>,
    /// Applies "not found" results even if many clients would lose their tenant.
    pub force: bool,
}

/// Counts of one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunSummary {
    /// Clients that were looked up.
    pub looked_up: u64,
    /// Clients that have an organization.
    pub found: u64,
    /// Clients that definitely have no organization.
    pub not_found: u64,
    /// Clients whose lookup gave no result.
    pub unavailable: u64,
    /// Hosts whose report to inventory was delivered.
    pub reported_to_inventory: u64,
    /// Hosts whose report to inventory was not delivered.
    pub pending_inventory: u64,
    /// Rows that changed after their claim. Their results were discarded.
    pub conflicts: u64,
    /// Why the run stopped.
    pub stop_reason: StopReason,
}

/// Why a run stopped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StopReason {
    /// No more rows are due, or the limit was reached.
    #[default]
    Done,
    /// At least half of the lookups of a chunk were unavailable.
    LookupUnavailable,
    /// Too many clients would have lost their tenant.
    MassLoss,
}

impl RunSummary {
    /// Returns whether lookups were unavailable or the run stopped early.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.unavailable > 0 || self.stop_reason != StopReason::Done
    }

    fn count_lookup(&mut self, status: LookupStatus) {
        match status {
            LookupStatus::Found => self.found += 1,
            LookupStatus::NotFound => self.not_found += 1,
            LookupStatus::Unavailable => self.unavailable += 1,
        }
    }
}

impl std::fmt::Display for RunSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            looked_up,
            found,
            not_found,
            unavailable,
            reported_to_inventory,
            pending_inventory,
            conflicts,
            stop_reason,
        } = self;
        write!(
            f,
            "{looked_up} looked up: {found} found, {not_found} not found, \
             {unavailable} unavailable; {reported_to_inventory} reported to inventory, \
             {pending_inventory} pending; {conflicts} skipped (row changed)"
        )?;
        match stop_reason {
            StopReason::Done => Ok(()),
            StopReason::LookupUnavailable => f.write_str(
                "; stopped early: the lookup service is unavailable (clients without a result \
                 keep their tenant and number of attempts)",
            ),
            StopReason::MassLoss => f.write_str(
                "; stopped early: mass tenant loss suppressed (clients keep their tenants; use \
                 --force to apply)",
            ),
        }
    }
}

/// Which rows a run still has to claim.
struct RunCursor {
    /// Fixed at the start: rows that become due during the run are left to the next run.
    criteria: LookupReason,
    /// Start of the run. Rows that were claimed or released since then are not claimed again, so a
    /// run processes each row at most once.
    started_at: Timestamp,
    /// Number of rows until the limit.
    remaining: u64,
}

/// Claimed rows with their lookup outcomes.
type LookedUpRows = Vec<(ClaimedConnection, TenantLookupOutcome)>;

impl TenantLookupJob {
    /// Returns the criteria that select the rows due now.
    #[must_use]
    pub fn due_criteria(&self, job: LookupJob) -> LookupReason {
        let now = self.clock.now();
        match job {
            LookupJob::InventoryRefresh => LookupReason::InventoryRefresh {
                before: clock::saturating_sub(now, self.config.refresh_after),
            },
            LookupJob::Tenantless => LookupReason::MissingTenant {
                before: clock::saturating_sub(now, self.config.retry_interval),
                max_attempts: self.config.max_attempts,
            },
        }
    }

    /// Runs a job until no row is due. Calls `progress` after each chunk.
    ///
    /// # Errors
    /// If the database is unavailable.
    pub async fn run(
        &self,
        job: LookupJob,
        options: RunOptions,
        progress: &(dyn Fn(&RunSummary) + Sync),
    ) -> Result<RunSummary, StoreError> {
        let mut cursor = RunCursor {
            criteria: self.due_criteria(job),
            started_at: self.clock.now(),
            remaining: options.limit.unwrap_or(u64::MAX),
        };
        let mut summary = RunSummary::default();
        let mut loss_counter = MassLossCounter::default();
        let mut looked_up = LookedUpRows::new();
        let mut chunk = self.claim_chunk(&mut cursor).await?;
        while !chunk.is_empty() {
            let (outcomes, next_chunk, saved) = tokio::join!(
                self.look_up(chunk),
                self.claim_chunk(&mut cursor),
                self.report_and_save(looked_up, &mut summary)
            );
            saved?;
            (looked_up, chunk) = (outcomes, next_chunk?);
            summary.looked_up += looked_up.len() as u64;
            summary.stop_reason = check_outcomes(&mut looked_up, &mut loss_counter, options.force);
            if summary.stop_reason != StopReason::Done {
                self.release(std::mem::take(&mut chunk)).await?;
            }
            progress(&summary);
        }
        self.report_and_save(looked_up, &mut summary).await?;
        metrics::updater_run_finished(job.name(), summary.is_failure());
        Ok(summary)
    }

    async fn claim_chunk(
        &self,
        cursor: &mut RunCursor,
    ) -> Result<Vec<ClaimedConnection>, StoreError> {
        let limit = u32::try_from(cursor.remaining).unwrap_or(CHUNK_ROWS);
        let limit = limit.min(CHUNK_ROWS);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let claimed_until = self.clock.now() + CLAIM_DURATION;
        let chunk = self
            .store
            .claim_for_lookup(cursor.criteria, limit, cursor.started_at, claimed_until)
            .await?;
        cursor.remaining -= chunk.len() as u64;
        Ok(chunk)
    }

    /// Ends the claim of rows that were not looked up. The rows stay unchanged and due.
    async fn release(&self, chunk: Vec<ClaimedConnection>) -> Result<(), StoreError> {
        let unchanged = |row: ClaimedConnection| LookupResult {
            client_id: row.client_id,
            row_version: row.row_version,
            outcome: LookupOutcome::Unavailable,
        };
        let results: Vec<LookupResult> = chunk.into_iter().map(unchanged).collect();
        if !results.is_empty() {
            self.store
                .save_lookup_results(&results, self.clock.now())
                .await?;
        }
        Ok(())
    }

    /// Looks up every client in the chunk.
    async fn look_up(&self, chunk: Vec<ClaimedConnection>) -> LookedUpRows {
        let lookups = futures::stream::iter(chunk).map(|row| async move {
            let deadline = Instant::now() + self.config.lookup_timeout;
            let outcome = self.tenant_lookup.lookup(&row.client_id, deadline).await;
            metrics::tenant_lookup_finished(outcome.status());
            (row, outcome)
        });
        lookups
            .buffer_unordered(self.config.max_concurrency.max(1))
            .collect()
            .await
    }

    /// Reports the found hosts to inventory and saves all results.
    async fn report_and_save(
        &self,
        looked_up: LookedUpRows,
        summary: &mut RunSummary,
    ) -> Result<(), StoreError> {
        if looked_up.is_empty() {
            return Ok(());
        }
        let now = self.clock.now();
        let reports = self.report_to_inventory(&looked_up, now).await;
        let mut results = Vec::with_capacity(looked_up.len());
        for ((row, outcome), report) in looked_up.into_iter().zip(reports) {
            summary.count_lookup(outcome.status());
            match report {
                Some(ReportOutcome::Delivered) => summary.reported_to_inventory += 1,
                Some(ReportOutcome::Pending) => summary.pending_inventory += 1,
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
                        }
                    }
                    TenantLookupOutcome::NotFound => LookupOutcome::NotFound,
                    TenantLookupOutcome::Unavailable => LookupOutcome::Unavailable,
                },
            });
        }
        let to_write = results
            .iter()
            .filter(|result| result.outcome != LookupOutcome::Unavailable)
            .count() as u64;
        let written = self.store.save_lookup_results(&results, now).await?;
        summary.conflicts += to_write.saturating_sub(written);
        Ok(())
    }

    /// Reports the hosts that have a tenant. Returns one entry per row; `None` for rows that were
    /// not reported.
    async fn report_to_inventory(
        &self,
        looked_up: &LookedUpRows,
        now: Timestamp,
    ) -> Vec<Option<ReportOutcome>> {
        let mut reports = vec![None; looked_up.len()];
        let Some(inventory) = &self.inventory else {
            return reports;
        };
        let mut reported_indexes = Vec::new();
        let mut hosts = Vec::new();
        for (index, (row, outcome)) in looked_up.iter().enumerate() {
            if let TenantLookupOutcome::Found(found) = outcome {
                reported_indexes.push(index);
                hosts.push(Host {
                    client_id: &row.client_id,
                    tenant: &found.tenant,
                    identity: &found.identity,
                    dialect: row.dialect,
                    kind: row.kind,
                    info: &row.info,
                });
            }
        }
        let outcomes = inventory.report(&hosts, now).await;
        for (index, outcome) in reported_indexes.into_iter().zip(outcomes) {
            reports[index] = Some(outcome);
        }
        reports
    }
}

/// Decides whether the run continues after a chunk. On a mass loss, changes the `NotFound` outcomes
/// of clients that have a tenant to `Unavailable`.
fn check_outcomes(
    looked_up: &mut LookedUpRows,
    loss_counter: &mut MassLossCounter,
    force: bool,
) -> StopReason {
    for (row, outcome) in looked_up.iter() {
        if row.tenant.is_some() {
            loss_counter.record(outcome);
        }
    }
    if loss_counter.is_mass_loss() && !force {
        metrics::mass_loss_suppressed();
        loss_counter.log_suppressed();
        for (row, outcome) in looked_up.iter_mut() {
            if row.tenant.is_some() && *outcome == TenantLookupOutcome::NotFound {
                *outcome = TenantLookupOutcome::Unavailable;
            }
        }
        return StopReason::MassLoss;
    }
    let unavailable = looked_up
        .iter()
        .filter(|(_, outcome)| *outcome == TenantLookupOutcome::Unavailable)
        .count();
    if unavailable * 2 >= looked_up.len() {
        return StopReason::LookupUnavailable;
    }
    StopReason::Done
}
