//! Connections that are closed after an error.
//!
//! After an error, SQLite may have rolled back the transaction by itself. A connection whose state
//! is unknown must not be returned to the pool, because every later transaction on it could fail.

use sqlx::pool::PoolConnection;
use sqlx::{Sqlite, SqliteConnection, SqlitePool};

use crate::database_files::DatabaseFiles;
use crate::driver::{self, Row, SqliteQuery, sqlite_query};
use crate::error::store_error;
use store::sql::{RowVisitor, Statement};
use store::{Result, StoreError};

store::statements! {
    /// Reads all rows of the transaction from the same snapshot.
    pub(crate) BEGIN_SNAPSHOT = "BEGIN DEFERRED";

    /// Acquires the write lock at the start, so no later statement of the transaction can fail with
    /// SQLITE_BUSY.
    pub(crate) BEGIN_WRITE = "BEGIN IMMEDIATE";

    COMMIT = "COMMIT";

    ROLLBACK = "ROLLBACK";
}

/// A connection of a pool. Dropping the value returns the connection to the pool, and rolls back an
/// open transaction.
#[derive(Debug)]
pub(crate) struct GuardedConnection {
    /// `None` after an error.
    connection: Option<PoolConnection<Sqlite>>,
    is_in_transaction: bool,
}

impl GuardedConnection {
    pub async fn acquire(pool: &SqlitePool, files: &DatabaseFiles) -> Result<Self> {
        if pool.num_idle() == 0 {
            // The pool may open a connection. It must not open a file that replaced the database.
            files.check()?;
        }
        Ok(Self {
            connection: Some(pool.acquire().await.map_err(store_error)?),
            is_in_transaction: false,
        })
    }

    /// Starts a transaction on a connection of the pool.
    pub async fn begin(pool: &SqlitePool, files: &DatabaseFiles, begin: Statement) -> Result<Self> {
        let mut connection = Self::acquire(pool, files).await?;
        connection.is_in_transaction = true;
        connection.execute(sqlite_query(&begin.with([]))).await?;
        Ok(connection)
    }

    /// Commits the transaction.
    pub async fn commit(mut self) -> Result<()> {
        self.execute(sqlite_query(&COMMIT.with([]))).await?;
        self.is_in_transaction = false;
        Ok(())
    }

    pub async fn fetch_all(&mut self, query: SqliteQuery) -> Result<Vec<Row>> {
        self.run(async |connection| driver::fetch_all(connection, query).await)
            .await
    }

    /// Passes each row to `visit` as soon as it is read, until `visit` returns `Break`.
    pub async fn visit_rows(
        &mut self,
        query: SqliteQuery,
        visit: RowVisitor<'_, Row>,
    ) -> Result<()> {
        self.run(async |connection| driver::visit_rows(connection, query, visit).await)
            .await
    }

    /// Returns the number of changed rows.
    pub async fn execute(&mut self, query: SqliteQuery) -> Result<u64> {
        self.run(async |connection| driver::execute(connection, query).await)
            .await
    }

    /// Runs a statement. Closes the connection after an error. After a rejected row, the state of
    /// the connection is known: only the statement was undone.
    pub async fn run<T>(
        &mut self,
        statement: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T>,
    ) -> Result<T> {
        let Some(connection) = &mut self.connection else {
            return Err(store_error(sqlx::Error::PoolClosed));
        };
        let result = statement(connection).await;
        if !matches!(result, Ok(_) | Err(StoreError::RowRejected(_))) {
            close(self.connection.take());
        }
        result
    }
}

/// Closes the connection without a rollback. SQLite rolls back when a connection closes.
fn close(connection: Option<PoolConnection<Sqlite>>) {
    drop(connection.map(PoolConnection::detach));
}

impl Drop for GuardedConnection {
    fn drop(&mut self) {
        if !self.is_in_transaction {
            return;
        }
        let Some(connection) = self.connection.take() else {
            return;
        };
        let mut transaction = Self {
            connection: Some(connection),
            is_in_transaction: false,
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                // `execute` closes the connection if the rollback fails.
                let rollback =
                    async move { transaction.execute(sqlite_query(&ROLLBACK.with([]))).await };
                runtime.spawn(rollback);
            }
            Err(_) => close(transaction.connection.take()),
        }
    }
}
