//! Connections that do not wait forever for the server.
//!
//! A connection can fail without an error: a failed network path drops every packet, and a server
//! can stop responding. The operating system then reports an error only after about 15 minutes, or
//! never. Therefore each statement has a deadline (`postgres.response_timeout`). A connection that
//! exceeds its deadline is closed at once, without a message to the server. `statement_timeout` ends
//! the statement on the server.
//!
//! A connection that exceeds its deadline is rarely the only one. All connections that were opened
//! earlier are replaced before their next use.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::PostgresSettings;
use crate::driver::{self, PgQuery, Row, pg_query};
use crate::error::{store_error, unavailable};
use store::sql::{RowVisitor, Statement};
use store::{Result, StoreError};

store::statements! {
    BEGIN = "BEGIN";

    /// Plans are cached. A sequential scan is the best plan only while a table is small.
    DISABLE_SEQUENTIAL_SCANS = "SET LOCAL enable_seqscan = off";

    /// The triggers do not write the search index, because the recorder writes it, and do not clear the
    /// search hash, because the recorder sets it.
    DISABLE_SEARCH_TRIGGERS = "
        SELECT set_config('cc.recorder', 'on', true), set_config('cc.search_hash', 'on', true)";

    DISABLE_SEQUENTIAL_SCANS_OF_SESSION = "SET enable_seqscan = off";

    DISABLE_SEARCH_TRIGGERS_OF_SESSION = "
        SELECT set_config('cc.recorder', 'on', false), set_config('cc.search_hash', 'on', false)";

    COMMIT = "COMMIT";

    ROLLBACK = "ROLLBACK";
}

/// Sets up a connection on which the recorder runs statements outside of a transaction, as
/// [`GuardedPool::begin_recording`] does for a transaction.
pub(crate) const RECORDER_SETUP: [Statement; 2] = [
    DISABLE_SEQUENTIAL_SCANS_OF_SESSION,
    DISABLE_SEARCH_TRIGGERS_OF_SESSION,
];

/// Time after which [`GuardedPool::acquire_or_explain`] finds out why there is no connection.
/// Shorter than the timeout of health checks.
const EXPLAIN_AFTER: Duration = Duration::from_millis(400);

/// Error codes after which all open connections are replaced.
const LOST_SERVER_CODES: [&str; 4] = [
    // read_only_sql_transaction: the server has become a standby.
    "25006", // admin_shutdown
    "57P01", // crash_shutdown
    "57P02", // cannot_connect_now
    "57P03",
];

/// Runs statements: a pool, or one of its connections.
pub(crate) trait Executor: Send {
    fn fetch_all(self, query: PgQuery) -> impl Future<Output = Result<Vec<Row>>> + Send;

    /// Returns the number of changed rows.
    fn execute(self, query: PgQuery) -> impl Future<Output = Result<u64>> + Send;
}

/// Limits of all connections of a process, and the time of their last failure.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionGuard {
    pub response_timeout: Duration,
    pub acquire_timeout: Duration,
    /// Connections that were opened before this time are replaced.
    trusted_since: Arc<Mutex<Instant>>,
}

impl ConnectionGuard {
    pub fn new(settings: &PostgresSettings) -> Self {
        Self {
            response_timeout: settings.response_timeout.get(),
            acquire_timeout: settings.acquire_timeout.get(),
            trusted_since: Arc::new(Mutex::new(Instant::now())),
        }
    }

    fn replace_open_connections(&self) {
        *self.trusted_since.lock() = Instant::now();
    }

    /// Returns whether a connection that was opened at `opened_at` can be used.
    pub fn is_trusted(&self, opened_at: Instant) -> bool {
        opened_at >= *self.trusted_since.lock()
    }

    /// Checks that an idle connection responds.
    pub async fn ping(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        use sqlx::Connection as _;
        // Half of the time remains to open another connection.
        let result = timeout(self.acquire_timeout / 2, connection.ping()).await;
        result.unwrap_or_else(|_| {
            self.replace_open_connections();
            let message = "an idle connection does not respond and is replaced";
            Err(std::io::Error::new(std::io::ErrorKind::TimedOut, message).into())
        })
    }

    /// Returns the error of a connection that was not available in time.
    pub fn acquire_error(&self, error: sqlx::Error) -> StoreError {
        if !matches!(error, sqlx::Error::PoolTimedOut) {
            return store_error(error);
        }
        unavailable(format!(
            "no connection within {:?} (postgres.acquire_timeout); check that the server responds, \
             or increase postgres.max_connections",
            self.acquire_timeout
        ))
    }

    fn response_error(&self) -> StoreError {
        self.replace_open_connections();
        unavailable(format!(
            "no response within {:?} (postgres.response_timeout), so the connection was closed; \
             check the network and that the server responds",
            self.response_timeout
        ))
    }
}

/// A pool of [`GuardedConnection`]s.
#[derive(Debug, Clone)]
pub(crate) struct GuardedPool {
    pool: PgPool,
    guard: ConnectionGuard,
}

impl GuardedPool {
    pub fn new(pool: PgPool, guard: ConnectionGuard) -> Self {
        Self { pool, guard }
    }

    pub fn guard(&self) -> &ConnectionGuard {
        &self.guard
    }

    pub async fn acquire(&self) -> Result<GuardedConnection> {
        let connection = self.pool.acquire().await;
        let connection = connection.map_err(|error| self.guard.acquire_error(error))?;
        let holder = Holder::Pooled(PooledConnection(Some(connection)));
        Ok(GuardedConnection::new(holder, self.guard.clone()))
    }

    /// Like [`Self::acquire`], but reports at once why the server cannot be reached. The pool itself
    /// retries a refused connection until the end of `acquire_timeout`, and then reports only the
    /// timeout.
    pub async fn acquire_or_explain(&self) -> Result<GuardedConnection> {
        tokio::select! {
            connection = self.acquire() => connection,
            error = self.connect_error() => Err(error),
        }
    }

    /// Waits for a short time, and then opens a connection outside of the pool. Returns only if this
    /// fails.
    async fn connect_error(&self) -> StoreError {
        use sqlx::Connection as _;
        tokio::time::sleep(EXPLAIN_AFTER).await;
        match PgConnection::connect_with(&self.pool.connect_options()).await {
            Err(error) => store_error(error),
            Ok(connection) => {
                let _ = connection.close().await;
                std::future::pending().await
            }
        }
    }

    /// Takes a connection out of the pool. The pool can then open another connection.
    pub async fn acquire_detached(&self) -> Result<GuardedConnection> {
        let connection = self.pool.acquire().await;
        let connection = connection.map_err(|error| self.guard.acquire_error(error))?;
        Ok(GuardedConnection::detached(
            connection.detach(),
            self.guard.clone(),
        ))
    }

    /// Starts a transaction of the recorder.
    pub async fn begin_recording(&self) -> Result<GuardedConnection> {
        let mut connection = self.acquire().await?;
        connection.is_in_transaction = true;
        let begin = async |connection: &mut PgConnection| {
            let statements = [BEGIN, DISABLE_SEQUENTIAL_SCANS, DISABLE_SEARCH_TRIGGERS];
            driver::execute_all(connection, &statements).await
        };
        connection.run(begin).await?;
        Ok(connection)
    }

    pub async fn close(&self) {
        self.pool.close().await;
    }
}

impl Executor for &GuardedPool {
    async fn fetch_all(self, query: PgQuery) -> Result<Vec<Row>> {
        self.acquire().await?.fetch_all(query).await
    }

    async fn execute(self, query: PgQuery) -> Result<u64> {
        self.acquire().await?.execute(query).await
    }
}

/// A connection whose statements have a deadline. After an error that leaves the connection in an
/// unknown state, the connection is closed.
#[derive(Debug)]
pub(crate) struct GuardedConnection {
    holder: Holder,
    guard: ConnectionGuard,
    is_in_transaction: bool,
    is_running_statement: bool,
    is_closed_when_canceled: bool,
}

#[derive(Debug)]
enum Holder {
    Pooled(PooledConnection),
    Detached(PgConnection),
    Closed,
}

/// A connection of a pool. Dropping the value closes the connection at once, and the pool can open
/// another connection.
#[derive(Debug)]
struct PooledConnection(Option<PoolConnection<Postgres>>);

impl PooledConnection {
    /// Waits until the connection has no unfinished statement, rolls back an open transaction, and
    /// returns the connection to the pool. If the returned future is dropped earlier, the connection
    /// is closed.
    async fn return_to_pool(mut self, is_in_transaction: bool) {
        let Some(connection) = &mut self.0 else {
            return;
        };
        if is_in_transaction {
            let rollback = pg_query(&ROLLBACK.with([]));
            let result = driver::count_changed_rows(connection, rollback).await;
            if result.is_err() {
                return;
            }
        }
        // sqlx also calls this function when a `PoolConnection` is dropped, but without a deadline.
        let returning = connection.return_to_pool();
        self.0 = None;
        returning.await;
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        drop(self.0.take().map(PoolConnection::detach));
    }
}

impl GuardedConnection {
    fn new(holder: Holder, guard: ConnectionGuard) -> Self {
        Self {
            holder,
            guard,
            is_in_transaction: false,
            is_running_statement: false,
            is_closed_when_canceled: false,
        }
    }

    /// Creates the guard of a connection that belongs to no pool.
    pub fn detached(connection: PgConnection, guard: ConnectionGuard) -> Self {
        Self::new(Holder::Detached(connection), guard)
    }

    /// Closes the connection if the caller no longer waits for a statement. Otherwise the
    /// connection returns to the pool when the statement ends.
    pub fn close_when_canceled(mut self) -> Self {
        self.is_closed_when_canceled = true;
        self
    }

    /// Checks that an idle connection responds.
    pub async fn ping(&mut self) -> Result<(), sqlx::Error> {
        let guard = self.guard.clone();
        guard.ping(self.connection()?).await
    }

    /// Returns whether an error or an unread result has closed the connection.
    pub fn is_closed(&self) -> bool {
        matches!(self.holder, Holder::Closed)
    }

    /// Passes each row to `visit` as soon as it is read, until `visit` returns `Break`. Closes the
    /// connection if the rest of the result is large, because the rest would have to be read before
    /// the next statement.
    pub async fn visit_rows(&mut self, query: PgQuery, visit: RowVisitor<'_, Row>) -> Result<()> {
        let is_reusable = self
            .run(async |connection| driver::visit_rows(connection, query, visit).await)
            .await?;
        if !is_reusable {
            self.holder = Holder::Closed;
        }
        Ok(())
    }

    /// Commits the transaction.
    pub async fn commit(mut self) -> Result<()> {
        self.execute(pg_query(&COMMIT.with([]))).await?;
        self.is_in_transaction = false;
        Ok(())
    }

    /// Closes a connection that belongs to no pool.
    pub async fn close(mut self) {
        use sqlx::Connection as _;
        if let Holder::Detached(connection) = std::mem::replace(&mut self.holder, Holder::Closed) {
            let _ = timeout(self.guard.response_timeout, connection.close()).await;
        }
    }

    fn connection(&mut self) -> Result<&mut PgConnection, sqlx::Error> {
        match &mut self.holder {
            Holder::Pooled(PooledConnection(Some(connection))) => Ok(connection),
            Holder::Detached(connection) => Ok(connection),
            Holder::Pooled(_) | Holder::Closed => Err(sqlx::Error::PoolClosed),
        }
    }

    /// Runs a statement. Closes the connection if there is no response in time, or after an error
    /// that leaves the connection in an unknown state.
    pub async fn run<T>(
        &mut self,
        statement: impl AsyncFnOnce(&mut PgConnection) -> Result<T>,
    ) -> Result<T> {
        self.is_running_statement = true;
        let response_timeout = self.guard.response_timeout;
        let connection = self.connection().map_err(store_error)?;
        let result = timeout(response_timeout, statement(connection)).await;
        self.is_running_statement = false;
        let Ok(result) = result else {
            self.holder = Holder::Closed;
            return Err(self.guard.response_error());
        };
        if let Err(error) = &result {
            self.close_after_error(error);
        }
        result
    }

    fn close_after_error(&mut self, error: &StoreError) {
        let code = error_code(error);
        let code = code.as_deref();
        let has_lost_server = code.is_some_and(|code| LOST_SERVER_CODES.contains(&code));
        if has_lost_server {
            self.guard.replace_open_connections();
        }
        let is_row_rejection = matches!(error, StoreError::RowRejected(_));
        // Outside of a transaction, the server has finished a statement to which it responded with
        // an error code.
        let has_unknown_state = code.is_none() || self.is_in_transaction;
        if has_lost_server || (has_unknown_state && !is_row_rejection) {
            self.holder = Holder::Closed;
        }
    }
}

/// Returns the error code of the server. Returns `None` if the error is not a response of the
/// server, or if the server rejected a row.
fn error_code(error: &StoreError) -> Option<Cow<'_, str>> {
    let StoreError::Unavailable(source) = error else {
        return None;
    };
    let error = source.downcast_ref::<sqlx::Error>()?;
    error.as_database_error()?.code()
}

impl Executor for &mut GuardedConnection {
    async fn fetch_all(self, query: PgQuery) -> Result<Vec<Row>> {
        self.run(async |connection| driver::fetch_rows(connection, query).await)
            .await
    }

    async fn execute(self, query: PgQuery) -> Result<u64> {
        self.run(async |connection| driver::count_changed_rows(connection, query).await)
            .await
    }
}

impl Drop for GuardedConnection {
    /// Returns the connection to its pool, and rolls back an open transaction.
    fn drop(&mut self) {
        let holder = std::mem::replace(&mut self.holder, Holder::Closed);
        let is_canceled = self.is_running_statement && self.is_closed_when_canceled;
        let (Holder::Pooled(connection), false) = (holder, is_canceled) else {
            return;
        };
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let returning = connection.return_to_pool(self.is_in_transaction);
        let guard = self.guard.clone();
        runtime.spawn(async move {
            if timeout(guard.response_timeout, returning).await.is_err() {
                guard.replace_open_connections();
            }
        });
    }
}
