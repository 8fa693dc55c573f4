//! Connections that are kept for short questions.
//!
//! The crate's pool asks every connection whether it still stands when it is given back: a round trip
//! for each question, which is as much as the question itself. Where callers are served, some connections
//! are therefore kept here, and asked only after a pause.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sqlx::{Connection as _, PgConnection, PgPool};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::store::StoreError;

/// A connection that nobody used for so long is asked whether it still stands.
pub(super) const ASKED_AFTER: Duration = Duration::from_secs(1);
/// It is closed after so long, and another one made.
const KEPT_FOR: Duration = Duration::from_mins(30);

/// A clone is the same.
#[derive(Debug, Clone)]
pub(super) struct ReservedConnections {
    pool: PgPool,
    idle: Arc<Mutex<Vec<IdleConnection>>>,
    places: Arc<Semaphore>,
    within: Duration,
    /// Then the pool answers.
    keeps_none: bool,
}

#[derive(Debug)]
struct IdleConnection {
    connection: PgConnection,
    since: Instant,
    used: Instant,
}

impl ReservedConnections {
    /// Makes connections as the pool does.
    pub fn new(pool: PgPool, most: u32, within: Duration) -> Self {
        Self {
            pool,
            idle: Arc::default(),
            places: Arc::new(Semaphore::new(most as usize)),
            within,
            keeps_none: most == 0,
        }
    }

    /// Asks with a connection of its own. One that fails, or is given up on, is not kept.
    pub async fn ask<T>(
        &self,
        question: impl AsyncFnOnce(&mut PgConnection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if self.keeps_none {
            return question(&mut *self.pool.acquire().await?).await;
        }
        let place = timeout(self.within, self.places.acquire()).await;
        let Ok(Ok(_place)) = place else {
            return Err(sqlx::Error::PoolTimedOut.into());
        };
        let connection = timeout(self.within, self.connection()).await;
        let mut kept = connection.map_err(|_| sqlx::Error::PoolTimedOut)??;
        let answer = question(&mut kept.connection).await?;
        kept.used = Instant::now();
        self.idle.lock().push(kept);
        Ok(answer)
    }

    async fn connection(&self) -> Result<IdleConnection, StoreError> {
        loop {
            let idle = self.idle.lock().pop();
            let Some(mut kept) = idle else { break };
            if kept.since.elapsed() > KEPT_FOR {
                let _ = kept.connection.close().await;
                continue;
            }
            if kept.used.elapsed() < ASKED_AFTER || kept.connection.ping().await.is_ok() {
                return Ok(kept);
            }
        }
        let now = Instant::now();
        Ok(IdleConnection {
            connection: self.pool.acquire().await?.detach(),
            since: now,
            used: now,
        })
    }

    /// Closes them.
    pub async fn close(&self) {
        self.places.close();
        let idle = std::mem::take(&mut *self.idle.lock());
        for kept in idle {
            let _ = kept.connection.close().await;
        }
    }
}
