//! The two updaters that ask to whom clients belong: for hosts that inventory should hear of again
//! (stale), and for clients that belong to nobody yet (tenantless).
//!
//! Rows are claimed in chunks until nothing is due. While one chunk is looked up, the next is claimed,
//! and the one before is announced and written: the gateway never waits for the database. Several
//! instances side by side never work on one row; a row that changed meanwhile is not overwritten.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::time::Instant;

use crate::domain::{Clock, Timestamp, clock};
use crate::integrations::inventory::message::Host;
use crate::integrations::inventory::reporter::{InventoryReporter, ReportOutcome};
use crate::store::{
    ClaimedConnection, LookupOutcome, LookupReason, LookupResult, Store, StoreError,
};
use crate::telemetry::metrics;
use crate::tenant::{FoundTenant, MassLossCounter, TenantLookup, TenantLookupOutcome};

/// Rows that are claimed at once.
const CHUNK: u32 = 2000;
/// A claim lasts longer than a chunk can take.
const CLAIM: Duration = Duration::from_mins(15);

/// LookupJob of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupJob {
    /// Hosts that inventory should hear of again.
    InventoryRefresh,
    /// Clients that belong to nobody yet.
    TenantlessClient,
}

impl LookupJob {
    /// Its name in metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::InventoryRefresh => "stale",
            Self::TenantlessClient => "tenantless",
        }
    }
}

/// What they work with.
#[derive(Clone)]
pub struct TenantLookupJob {
    /// The store.
    pub store: Arc<dyn Store>,
    /// To whom clients belong.
    pub tenants: Arc<dyn TenantLookup>,
    /// Who is told of hosts, if anybody.
    pub inventory: Option<InventoryReporter>,
    /// Now.
    pub clock: Arc<dyn Clock>,
    /// How.
    pub settings: LookupSettings,
}

/// How.
#[derive(Debug, Clone)]
pub struct LookupSettings {
    /// Lookups under way at once.
    pub at_once: usize,
    /// How long one may take.
    pub within: Duration,
    /// Inventory should hear of a host this long after it last did.
    pub stale_after: Duration,
    /// A client without a tenant is looked up again after this.
    pub retry_after: Duration,
    /// And this often at most.
    pub max_attempts: u32,
}

/// What a run is asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunOptions {
    /// No more rows than this.
    pub limit: Option<u64>,
    /// Believe the gateway even if it takes the tenants of many at once.
    pub force: bool,
}

/// How a run went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Rows that were looked at.
    pub looked_up: u64,
    /// Belong to an organisation.
    pub found: u64,
    /// Belong to nobody, definitely.
    pub not_found: u64,
    /// No answer.
    pub unavailable: u64,
    /// Inventory heard of them.
    pub announced: u64,
    /// Inventory should have, and did not.
    pub owed: u64,
    /// Changed meanwhile, and were left alone.
    pub changed: u64,
    /// Why it ended.
    pub ended: StopReason,
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StopReason {
    /// Nothing is due any more, or the limit was reached.
    #[default]
    Done,
    /// There are no answers.
    LookupUnavailable,
    /// Too many would have lost their tenant.
    MassLoss,
}

impl Summary {
    /// Whether an operator should look at it.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.unavailable > 0 || self.ended != StopReason::Done
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            looked_up,
            found,
            not_found,
            unavailable,
            announced,
            owed,
            changed,
            ..
        } = self;
        write!(
            f,
            "{looked_up} looked up: {found} found, {not_found} belong to nobody, {unavailable} without an answer; {announced} announced to inventory, {owed} owed; {changed} changed meanwhile"
        )?;
        match self.ended {
            StopReason::Done => Ok(()),
            StopReason::LookupUnavailable => f.write_str(
                "; ended early: the lookup service does not answer (tenants and attempts are as they were)",
            ),
            StopReason::MassLoss => f.write_str(
                "; ended early: too many would lose their tenant at once, so the answers are not believed (--force overrides)",
            ),
        }
    }
}

/// What a run takes.
struct RunCursor {
    /// What was due when it began; what becomes due meanwhile is the next run's.
    due: LookupReason,
    /// When it began. What was claimed, or given back, since then is not taken: each row is taken at
    /// most once a run.
    started: Timestamp,
    /// So many more rows.
    left: u64,
}

/// Rows and what was found out about each.
type LookedUp = Vec<(ClaimedConnection, TenantLookupOutcome)>;

impl TenantLookupJob {
    /// What is due for one of them now.
    #[must_use]
    pub fn due(&self, which: LookupJob) -> LookupReason {
        let now = self.clock.now();
        match which {
            LookupJob::InventoryRefresh => LookupReason::InventoryRefresh {
                before: clock::before(now, self.settings.stale_after),
            },
            LookupJob::TenantlessClient => LookupReason::MissingTenant {
                before: clock::before(now, self.settings.retry_after),
                max_attempts: self.settings.max_attempts,
            },
        }
    }

    /// Runs until nothing is due. `progress` is told after each chunk.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn run(
        &self,
        which: LookupJob,
        request: RunOptions,
        progress: &(dyn Fn(&Summary) + Sync),
    ) -> Result<Summary, StoreError> {
        let mut taking = RunCursor {
            due: self.due(which),
            started: self.clock.now(),
            left: request.limit.unwrap_or(u64::MAX),
        };
        let mut summary = Summary::default();
        let mut guard = MassLossCounter::default();
        let mut looked_up = LookedUp::new();
        let mut chunk = self.claim(&mut taking).await?;
        while !chunk.is_empty() {
            let (found, next, settled) = tokio::join!(
                self.look_up(chunk),
                self.claim(&mut taking),
                self.settle(looked_up, &mut summary)
            );
            settled?;
            (looked_up, chunk) = (found, next?);
            summary.looked_up += looked_up.len() as u64;
            summary.ended = judge(&mut looked_up, &mut guard, request.force);
            if summary.ended != StopReason::Done {
                self.give_back(std::mem::take(&mut chunk)).await?;
            }
            progress(&summary);
        }
        self.settle(looked_up, &mut summary).await?;
        metrics::updater_run(which.name(), summary.is_failure());
        Ok(summary)
    }

    /// Claims a chunk.
    async fn claim(&self, taking: &mut RunCursor) -> Result<Vec<ClaimedConnection>, StoreError> {
        let limit = u32::try_from(taking.left).unwrap_or(CHUNK).min(CHUNK);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let until = self.clock.now() + CLAIM;
        let chunk = self
            .store
            .claim_for_lookup(taking.due, limit, taking.started, until)
            .await?;
        taking.left -= chunk.len() as u64;
        Ok(chunk)
    }

    /// Gives a chunk back that nobody was asked about: as it was, and due.
    async fn give_back(&self, chunk: Vec<ClaimedConnection>) -> Result<(), StoreError> {
        let untouched = |due: ClaimedConnection| LookupResult {
            client_id: due.client_id,
            version: due.version,
            outcome: LookupOutcome::Unavailable,
        };
        let findings: Vec<LookupResult> = chunk.into_iter().map(untouched).collect();
        if !findings.is_empty() {
            self.store
                .save_lookup_results(&findings, self.clock.now())
                .await?;
        }
        Ok(())
    }

    /// Looks everybody in a chunk up.
    async fn look_up(&self, chunk: Vec<ClaimedConnection>) -> LookedUp {
        let lookups = futures::stream::iter(chunk).map(|due| async move {
            let deadline = Instant::now() + self.settings.within;
            let lookup = self.tenants.lookup(&due.client_id, deadline).await;
            metrics::tenant_lookup(lookup.outcome());
            (due, lookup)
        });
        lookups
            .buffer_unordered(self.settings.at_once.max(1))
            .collect()
            .await
    }

    /// Tells inventory, and writes.
    async fn settle(&self, looked_up: LookedUp, summary: &mut Summary) -> Result<(), StoreError> {
        if looked_up.is_empty() {
            return Ok(());
        }
        let now = self.clock.now();
        let told = self.tell(&looked_up, now).await;
        let mut findings = Vec::with_capacity(looked_up.len());
        for ((due, lookup), told) in looked_up.into_iter().zip(told) {
            match told {
                Some(ReportOutcome::Delivered) => summary.announced += 1,
                Some(ReportOutcome::Pending) => summary.owed += 1,
                Some(ReportOutcome::NotEligible) | None => {}
            }
            findings.push(LookupResult {
                client_id: due.client_id,
                version: due.version,
                outcome: match lookup {
                    TenantLookupOutcome::Found(FoundTenant { tenant, .. }) => {
                        summary.found += 1;
                        LookupOutcome::Found {
                            tenant,
                            reported_to_inventory_at: (told == Some(ReportOutcome::Delivered))
                                .then_some(now),
                            is_refused: told == Some(ReportOutcome::NotEligible),
                        }
                    }
                    TenantLookupOutcome::NotFound => {
                        summary.not_found += 1;
                        LookupOutcome::NotFound
                    }
                    TenantLookupOutcome::Unavailable => {
                        summary.unavailable += 1;
                        LookupOutcome::Unavailable
                    }
                },
            });
        }
        let definite = findings
            .iter()
            .filter(|finding| finding.outcome != LookupOutcome::Unavailable)
            .count() as u64;
        let written = self.store.save_lookup_results(&findings, now).await?;
        summary.changed += definite.saturating_sub(written);
        Ok(())
    }

    /// What inventory was told of each; none where there was nothing to tell.
    async fn tell(&self, looked_up: &LookedUp, now: Timestamp) -> Vec<Option<ReportOutcome>> {
        let mut told = vec![None; looked_up.len()];
        let Some(announcer) = &self.inventory else {
            return told;
        };
        let mut whom = Vec::new();
        let mut hosts = Vec::new();
        for (at, (due, lookup)) in looked_up.iter().enumerate() {
            if let TenantLookupOutcome::Found(found) = lookup {
                whom.push(at);
                hosts.push(Host {
                    client_id: &due.client_id,
                    tenant: &found.tenant,
                    identity: &found.identity,
                    dialect: due.dialect,
                    kind: due.kind,
                    reported: &due.reported,
                });
            }
        }
        for (at, became) in whom.into_iter().zip(announcer.tell(&hosts, now).await) {
            told[at] = Some(became);
        }
        told
    }
}

/// Whether to go on. Where the answers are not to be believed, they are none.
fn judge(looked_up: &mut LookedUp, guard: &mut MassLossCounter, force: bool) -> StopReason {
    for (due, lookup) in looked_up.iter() {
        if due.tenant.is_some() {
            guard.note(lookup);
        }
    }
    if guard.is_tripped() && !force {
        metrics::mass_loss();
        guard.log_suppressed();
        for (due, lookup) in looked_up.iter_mut() {
            if due.tenant.is_some() && *lookup == TenantLookupOutcome::NotFound {
                *lookup = TenantLookupOutcome::Unavailable;
            }
        }
        return StopReason::MassLoss;
    }
    let silent = looked_up
        .iter()
        .filter(|(_, lookup)| *lookup == TenantLookupOutcome::Unavailable)
        .count();
    if silent * 2 >= looked_up.len() {
        return StopReason::LookupUnavailable;
    }
    StopReason::Done
}
