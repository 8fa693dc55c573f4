//! Connections that are kept for short questions.
//!
//! The crate's pool asks every connection whether it still stands when it is given back: a round trip
//! for each question, which is as much as the question itself. Half of the connections are therefore
//! kept out here, and asked only after a pause.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sqlx::pool::PoolConnection;
use sqlx::{Connection as _, PgConnection, PgPool, Postgres};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::store::StoreError;

/// A connection that nobody used for so long is asked whether it still stands.
pub(super) const ASKED_AFTER: Duration = Duration::from_secs(1);
/// It goes back to the pool after so long, which replaces it when it is old.
const KEPT_FOR: Duration = Duration::from_mins(5);

/// A clone is the same.
#[derive(Debug, Clone)]
pub(super) struct Readers {
    pool: PgPool,
    idle: Arc<Mutex<Vec<Kept>>>,
    places: Arc<Semaphore>,
    within: Duration,
}

#[derive(Debug)]
struct Kept {
    connection: PoolConnection<Postgres>,
    since: Instant,
    used: Instant,
}

impl Readers {
    pub fn new(pool: PgPool, max_connections: u32, within: Duration) -> Self {
        let places = usize::try_from(max_connections / 2).unwrap_or(1).max(1);
        Self {
            pool,
            idle: Arc::default(),
            places: Arc::new(Semaphore::new(places)),
            within,
        }
    }

    /// Asks with a connection of its own. One that fails, or is given up on, is not kept.
    pub async fn ask<T>(
        &self,
        question: impl AsyncFnOnce(&mut PgConnection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let place = timeout(self.within, self.places.acquire()).await;
        let Ok(Ok(_place)) = place else {
            return Err(sqlx::Error::PoolTimedOut.into());
        };
        let mut kept = self.connection().await?;
        let answer = question(&mut kept.connection).await?;
        kept.used = Instant::now();
        if kept.since.elapsed() < KEPT_FOR {
            self.idle.lock().push(kept);
        }
        Ok(answer)
    }

    async fn connection(&self) -> Result<Kept, StoreError> {
        loop {
            let idle = self.idle.lock().pop();
            let Some(mut kept) = idle else { break };
            let stands = kept.used.elapsed() < ASKED_AFTER || kept.connection.ping().await.is_ok();
            if stands {
                return Ok(kept);
            }
        }
        let now = Instant::now();
        Ok(Kept {
            connection: self.pool.acquire().await?,
            since: now,
            used: now,
        })
    }

    /// Gives them back, so that the pool can close.
    pub fn close(&self) {
        self.places.close();
        self.idle.lock().clear();
    }
}
