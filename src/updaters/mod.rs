//! Periodic work on the store: `run_once`, and the loop around it.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::Clock;
use crate::shutdown::Stopper;
use crate::store::{Store, StoreError};

/// What the updaters work with.
pub struct Updaters {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Now.
    pub clock: Arc<dyn Clock>,
    /// How often there is work to look for.
    pub interval: Duration,
    /// How long those who left are remembered.
    pub departed_kept: Duration,
}

impl Updaters {
    /// Looks for work now and at every interval, until `stopper` asks.
    pub async fn run(self, stopper: Stopper) {
        loop {
            match self.run_once().await {
                Ok(0) => {}
                Ok(forgotten) => tracing::info!(forgotten, "clients that left long ago"),
                Err(error) => tracing::warn!(%error, "this run failed; the next one tries again"),
            }
            tokio::select! {
                () = tokio::time::sleep(self.interval) => {}
                () = stopper.asked() => return,
            }
        }
    }

    /// Forgets those who left long ago. Returns how many.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn run_once(&self) -> Result<u64, StoreError> {
        let now = self.clock.now();
        let before = now - self.departed_kept;
        self.store.forget_departed(before).await
    }
}
