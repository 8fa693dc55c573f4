//! Connections that are reserved for short API queries.
//!
//! The sqlx pool pings every connection that is returned to the pool. This round trip takes as long
//! as a short query. A process that serves the API therefore keeps some connections outside of the
//! pool. A reserved connection is pinged only if it was idle.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sqlx::{Connection as _, PgConnection, PgPool};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::error::store_error;
use store::Result;

/// A connection that was idle for this long is pinged before its next use.
pub(super) const PING_AFTER_IDLE: Duration = Duration::from_secs(1);
/// A connection that has been open for longer than this is closed and replaced.
const MAX_CONNECTION_AGE: Duration = Duration::from_mins(30);

/// A set of connections outside of the pool. Clones share the connections.
#[derive(Debug, Clone)]
pub(super) struct ReservedConnections {
    pool: PgPool,
    idle_connections: Arc<Mutex<Vec<ReservedConnection>>>,
    /// Limits the number of open connections.
    permits: Arc<Semaphore>,
    acquire_timeout: Duration,
    /// True if no connections are reserved. Every query then uses the pool.
    is_disabled: bool,
}

#[derive(Debug)]
struct ReservedConnection {
    connection: PgConnection,
    opened_at: Instant,
    last_used_at: Instant,
}

impl ReservedConnections {
    /// Reserves up to `max_connections` connections. The pool opens a connection only when a query
    /// needs the connection.
    pub fn new(pool: PgPool, max_connections: u32, acquire_timeout: Duration) -> Self {
        Self {
            pool,
            idle_connections: Arc::default(),
            permits: Arc::new(Semaphore::new(max_connections as usize)),
            acquire_timeout,
            is_disabled: max_connections == 0,
        }
    }

    /// Runs a query on a reserved connection. The connection is dropped if the query fails or is
    /// canceled.
    pub async fn with_connection<T>(
        &self,
        query: impl AsyncFnOnce(&mut PgConnection) -> Result<T>,
    ) -> Result<T> {
        if self.is_disabled {
            let mut connection = self.pool.acquire().await.map_err(store_error)?;
            return query(&mut connection).await;
        }
        let permit = timeout(self.acquire_timeout, self.permits.acquire()).await;
        let Ok(Ok(_permit)) = permit else {
            return Err(store_error(sqlx::Error::PoolTimedOut));
        };
        let connection = timeout(self.acquire_timeout, self.acquire()).await;
        let mut reserved = connection.map_err(|_| store_error(sqlx::Error::PoolTimedOut))??;
        let result = query(&mut reserved.connection).await?;
        reserved.last_used_at = Instant::now();
        self.idle_connections.lock().push(reserved);
        Ok(result)
    }

    async fn acquire(&self) -> Result<ReservedConnection> {
        loop {
            let idle_connection = self.idle_connections.lock().pop();
            let Some(mut reserved) = idle_connection else {
                break;
            };
            if reserved.opened_at.elapsed() > MAX_CONNECTION_AGE {
                let _ = reserved.connection.close().await;
                continue;
            }
            if reserved.last_used_at.elapsed() < PING_AFTER_IDLE
                || reserved.connection.ping().await.is_ok()
            {
                return Ok(reserved);
            }
        }
        let now = Instant::now();
        Ok(ReservedConnection {
            connection: self.pool.acquire().await.map_err(store_error)?.detach(),
            opened_at: now,
            last_used_at: now,
        })
    }

    /// Closes the idle connections. Later queries fail.
    pub async fn close(&self) {
        self.permits.close();
        let idle_connections = std::mem::take(&mut *self.idle_connections.lock());
        for reserved in idle_connections {
            let _ = reserved.connection.close().await;
        }
    }
}
