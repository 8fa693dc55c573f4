//! Connections that are reserved for the short queries of the API, or for the batches of the recorder.
//!
//! The sqlx pool pings every connection that is returned to the pool. This round trip takes as long
//! as a short query. A process that serves the API, or that records, therefore keeps some connections
//! outside of the pool. A reserved connection is pinged only if it was idle.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sqlx::PgConnection;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::driver;
use crate::guarded_pool::{GuardedConnection, GuardedPool};
use store::sql::Statement;
use store::{Result, StoreError};

/// A connection that was idle for this long is pinged before its next use.
pub(super) const PING_AFTER_IDLE: Duration = Duration::from_secs(1);
/// A connection that has been open for longer than this is closed and replaced.
const MAX_CONNECTION_AGE: Duration = Duration::from_mins(30);

/// A set of connections outside of the pool. Clones share the connections.
#[derive(Debug, Clone)]
pub(super) struct ReservedConnections {
    pool: GuardedPool,
    idle_connections: Arc<Mutex<Vec<ReservedConnection>>>,
    /// Limits the number of open connections.
    permits: Arc<Semaphore>,
    /// Statements that set up each new connection.
    setup: &'static [Statement],
    /// True if no connections are reserved. Every query then uses the pool.
    is_disabled: bool,
}

#[derive(Debug)]
struct ReservedConnection {
    connection: GuardedConnection,
    opened_at: Instant,
    last_used_at: Instant,
}

impl ReservedConnections {
    /// Reserves up to `max_connections` connections. The pool opens a connection only when a query
    /// needs the connection. The statements in `setup` run once on each new connection.
    pub fn new(pool: GuardedPool, max_connections: u32, setup: &'static [Statement]) -> Self {
        Self {
            pool,
            setup,
            idle_connections: Arc::default(),
            permits: Arc::new(Semaphore::new(max_connections as usize)),
            is_disabled: max_connections == 0,
        }
    }

    /// Returns whether no connections are reserved. Every query then uses the pool, whose connections
    /// are not set up.
    pub fn is_disabled(&self) -> bool {
        self.is_disabled
    }

    /// Runs a query on a reserved connection. The connection is dropped if the query fails or is
    /// canceled. It is kept after [`StoreError::OutdatedBatch`]: a statement of ours has raised this
    /// error, so the server has responded and the statement is rolled back.
    pub async fn with_connection<T>(
        &self,
        query: impl AsyncFnOnce(&mut GuardedConnection) -> Result<T>,
    ) -> Result<T> {
        if self.is_disabled {
            let mut connection = self.pool.acquire().await?;
            return query(&mut connection).await;
        }
        let guard = self.pool.guard();
        let timed_out = || guard.acquire_error(sqlx::Error::PoolTimedOut);
        let permit = timeout(guard.acquire_timeout, self.permits.acquire()).await;
        let Ok(Ok(_permit)) = permit else {
            return Err(timed_out());
        };
        let connection = timeout(guard.acquire_timeout, self.acquire()).await;
        let mut reserved = connection.map_err(|_| timed_out())??;
        let result = query(&mut reserved.connection).await;
        let is_usable = matches!(result, Ok(_) | Err(StoreError::OutdatedBatch));
        if is_usable && !reserved.connection.is_closed() {
            reserved.last_used_at = Instant::now();
            self.idle_connections.lock().push(reserved);
        }
        result
    }

    async fn acquire(&self) -> Result<ReservedConnection> {
        loop {
            let idle_connection = self.idle_connections.lock().pop();
            let Some(mut reserved) = idle_connection else {
                break;
            };
            if !self.pool.guard().is_trusted(reserved.opened_at) {
                continue;
            }
            if reserved.opened_at.elapsed() > MAX_CONNECTION_AGE {
                reserved.connection.close().await;
                continue;
            }
            if reserved.last_used_at.elapsed() < PING_AFTER_IDLE
                || reserved.connection.ping().await.is_ok()
            {
                return Ok(reserved);
            }
        }
        let now = Instant::now();
        let mut connection = self.pool.acquire_detached().await?;
        if !self.setup.is_empty() {
            let set_up = async |connection: &mut PgConnection| {
                driver::execute_all(connection, self.setup).await
            };
            connection.run(set_up).await?;
        }
        Ok(ReservedConnection {
            connection,
            opened_at: now,
            last_used_at: now,
        })
    }

    /// Closes the idle connections. Later queries fail.
    pub async fn close(&self) {
        self.permits.close();
        let idle_connections = std::mem::take(&mut *self.idle_connections.lock());
        for reserved in idle_connections {
            reserved.connection.close().await;
        }
    }
}
