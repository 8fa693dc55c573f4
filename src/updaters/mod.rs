//! Periodic work on the store: `run_once`, and the loop around it.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::Clock;
use crate::shutdown::Stopper;
use crate::store::{LetterFilter, Store, StoreError};

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
    /// How long messages that can never be processed are kept.
    pub dead_letters_kept: Duration,
}

/// What a run forgot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgotten {
    /// Clients that left long ago.
    pub departed: u64,
    /// Dead letters that came long ago.
    pub dead_letters: u64,
}

impl Updaters {
    /// Looks for work now and at every interval, until `stopper` asks.
    pub async fn run(self, stopper: Stopper) {
        loop {
            match self.run_once().await {
                Ok(Forgotten {
                    departed: 0,
                    dead_letters: 0,
                }) => {}
                Ok(Forgotten {
                    departed,
                    dead_letters,
                }) => tracing::info!(departed, dead_letters, "forgotten, by their age"),
                Err(error) => tracing::warn!(%error, "this run failed; the next one tries again"),
            }
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
    pub async fn run_once(&self) -> Result<Forgotten, StoreError> {
        let now = self.clock.now();
        let old = LetterFilter {
            before: Some(now - self.dead_letters_kept),
            ..LetterFilter::default()
        };
        Ok(Forgotten {
            departed: self.store.forget_departed(now - self.departed_kept).await?,
            dead_letters: self.store.purge_dead_letters(&old).await?,
        })
    }
}
