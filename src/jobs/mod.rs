//! Periodic work on the store: what is due now, and the loop around it.

mod tenant_lookups;

use std::sync::Arc;
use std::time::Duration;

use crate::domain::{Clock, clock};
use crate::shutdown::TaskGroup;
use crate::store::{DeadLetterFilter, Store, StoreError};
use crate::telemetry::metrics;

pub use tenant_lookups::{
    LookupJob, LookupSettings, RunOptions, StopReason, Summary, TenantLookupJob,
};

/// What the updaters work with.
pub struct PeriodicJobs {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Now.
    pub clock: Arc<dyn Clock>,
    /// How often there is work to look for.
    pub interval: Duration,
    /// How long those who left are remembered.
    pub disconnected_retention: Duration,
    /// How long messages that can never be processed are kept.
    pub dead_letters_kept: Duration,
    /// The two that look tenants up.
    pub lookups: TenantLookupJob,
}

/// What a run forgot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deleted {
    /// Clients that left long ago.
    pub departed: u64,
    /// Dead letters that came long ago.
    pub dead_letters: u64,
}

impl PeriodicJobs {
    /// Looks for work now and at every interval, until `stopper` asks.
    pub async fn run(self, stopper: TaskGroup) {
        loop {
            match self.delete_expired().await {
                Ok(Deleted {
                    departed: 0,
                    dead_letters: 0,
                }) => {}
                Ok(Deleted {
                    departed,
                    dead_letters,
                }) => tracing::info!(departed, dead_letters, "forgotten, by their age"),
                Err(error) => tracing::warn!(%error, "this run failed; the next one tries again"),
            }
            for which in [LookupJob::TenantlessClient, LookupJob::InventoryRefresh] {
                tokio::select! {
                    () = self.look_up(which) => {}
                    () = stopper.asked() => return,
                }
            }
            if let Err(error) = self.store.tidy().await {
                tracing::warn!(%error, "the store was not tidied; the next run tries again");
            }
            self.count().await;
            tokio::select! {
                () = tokio::time::sleep(self.interval) => {}
                () = stopper.asked() => return,
            }
        }
    }

    /// Forgets those who left, and dead letters that came, long ago.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn delete_expired(&self) -> Result<Deleted, StoreError> {
        let now = self.clock.now();
        let old = DeadLetterFilter {
            before: Some(clock::before(now, self.dead_letters_kept)),
            ..DeadLetterFilter::default()
        };
        Ok(Deleted {
            departed: self
                .store
                .delete_disconnected_before(clock::before(now, self.disconnected_retention))
                .await?,
            dead_letters: self.store.purge_dead_letters(&old).await?,
        })
    }

    async fn look_up(&self, which: LookupJob) {
        match self
            .lookups
            .run(which, RunOptions::default(), &|_| {})
            .await
        {
            Ok(summary) if summary == Summary::default() => {}
            Ok(summary) if summary.is_failure() => {
                tracing::warn!(updater = which.name(), %summary, "the next run tries again");
            }
            Ok(summary) => tracing::info!(updater = which.name(), %summary),
            Err(error) => {
                tracing::warn!(updater = which.name(), %error, "the next run tries again");
            }
        }
    }

    /// For the metrics: how many are connected, and how those without a tenant stand.
    async fn count(&self) {
        let most = self.lookups.settings.max_attempts;
        let tenantless = self.store.count_tenantless(most).await;
        if let (Ok(tenantless), Ok(with_tenant)) = (tenantless, self.store.count_connected().await)
        {
            let now = self.clock.now();
            let oldest = tenantless.oldest.map(|oldest| now.duration_since(oldest));
            metrics::connections(
                with_tenant,
                tenantless.waiting,
                tenantless.exhausted,
                oldest,
            );
        }
    }
}
