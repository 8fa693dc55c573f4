//! Runs statements with sqlx, and converts between PostgreSQL types and Rust types.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use serde_json::Value;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{AssertSqlSafe, Column as _, PgConnection, Postgres, Row as _, TypeInfo as _};
use time::OffsetDateTime;
use tokio::time::timeout;

use crate::error::store_error;
use crate::guarded_pool::Executor;
use domain::Timestamp;
use store::Result;
use store::sql::{
    ColumnReader, Parameter, Query, RowVisitor, Statement, invalid_json, timestamp_from_micros,
};

/// A statement of the driver, to which parameters can be bound.
pub(crate) type PgQuery = sqlx::query::Query<'static, Postgres, PgArguments>;

/// Starts a statement whose parameters are arrays.
pub(crate) fn set_based(statement: Statement) -> PgQuery {
    sqlx::query(statement.sql())
}

/// Converts a query of `store::sql`.
pub(crate) fn pg_query(query: &Query<'_>) -> PgQuery {
    let start = match query.sql() {
        Cow::Borrowed(sql) => sqlx::query(*sql),
        Cow::Owned(sql) => sqlx::query(AssertSqlSafe(sql.clone())),
    };
    let parameters = query.parameters().iter();
    let bound = parameters.fold(start, |bound, parameter| match parameter {
        Parameter::Text(text) => bound.bind(text.as_deref()),
        Parameter::TextList(texts) => bound.bind(texts),
        Parameter::Integer(number) => bound.bind(*number),
        Parameter::Timestamp(time) => bound.bind(time.map(timestamptz)),
    });
    bound.persistent(query.is_cached())
}

pub(crate) async fn fetch_all(executor: impl Executor, query: PgQuery) -> Result<Vec<Row>> {
    executor.fetch_all(query).await
}

/// Maximum time to read and discard the rest of a result.
const DISCARD_TIMEOUT: Duration = Duration::from_millis(50);

/// Time after which a task that visits rows lets other tasks run. The visitor of a large row can need
/// a millisecond, and the next row is usually available at once.
const MAX_BUSY_TIME: Duration = Duration::from_millis(1);

/// Passes each row to `visit` as soon as it is read, until `visit` returns `Break`. Returns whether
/// another query can use the connection.
///
/// After `Break`, the server still sends the following rows. This function discards them for at most
/// [`DISCARD_TIMEOUT`]. If it returns false, the caller must close the connection.
///
/// Only [`crate::guarded_pool`] calls this function.
pub(crate) async fn visit_rows(
    connection: &mut PgConnection,
    query: PgQuery,
    visit: RowVisitor<'_, Row>,
) -> Result<bool> {
    let mut rows = query.fetch(connection);
    let mut busy_since = Instant::now();
    while let Some(row) = rows.try_next().await.map_err(store_error)? {
        if visit(Row(row))?.is_continue() {
            if busy_since.elapsed() > MAX_BUSY_TIME {
                tokio::task::yield_now().await;
                busy_since = Instant::now();
            }
            continue;
        }
        let discard = async {
            while rows.try_next().await?.is_some() {}
            Ok::<(), sqlx::Error>(())
        };
        return Ok(matches!(
            timeout(DISCARD_TIMEOUT, discard).await,
            Ok(Ok(()))
        ));
    }
    Ok(true)
}

/// Returns the number of changed rows.
pub(crate) async fn execute(executor: impl Executor, query: PgQuery) -> Result<u64> {
    executor.execute(query).await
}

/// Runs a query without a deadline. Only [`crate::guarded_pool`] calls this function.
pub(crate) async fn fetch_rows(connection: &mut PgConnection, query: PgQuery) -> Result<Vec<Row>> {
    let rows = query.fetch_all(connection).await.map_err(store_error)?;
    Ok(rows.into_iter().map(Row).collect())
}

/// Runs a statement without a deadline, and returns the number of changed rows. Only
/// [`crate::guarded_pool`] and the migration call this function.
pub(crate) async fn count_changed_rows(
    connection: &mut PgConnection,
    query: PgQuery,
) -> Result<u64> {
    let result = query.execute(connection).await.map_err(store_error)?;
    Ok(result.rows_affected())
}

/// Runs several statements without parameters in one round trip. Only [`crate::guarded_pool`] calls this
/// function.
pub(crate) async fn execute_all(
    connection: &mut PgConnection,
    statements: &[Statement],
) -> Result<()> {
    let texts: Vec<&str> = statements.iter().map(|statement| statement.sql()).collect();
    let script = sqlx::raw_sql(AssertSqlSafe(texts.join("; ")));
    script.execute(connection).await.map_err(store_error)?;
    Ok(())
}

/// Converts a timestamp to the type of a SQL parameter. [`OffsetDateTime`] supports the years 0 to
/// 9999, which include all timestamps of the program.
pub(crate) fn timestamptz(time: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(time.as_microsecond()) * 1000)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// A row of a result.
pub struct Row(PgRow);

impl ColumnReader for Row {
    fn optional_text(&self, column: &str) -> Result<Option<String>> {
        self.0.try_get(column).map_err(store_error)
    }

    fn optional_integer(&self, column: &str) -> Result<Option<i64>> {
        let info = self.0.try_column(column).map_err(store_error)?.type_info();
        let integer = match info.name() {
            "INT4" => self
                .0
                .try_get::<Option<i32>, _>(column)
                .map(|n| n.map(i64::from)),
            _ => self.0.try_get::<Option<i64>, _>(column),
        };
        integer.map_err(store_error)
    }

    fn optional_timestamp(&self, column: &str) -> Result<Option<Timestamp>> {
        let time: Option<OffsetDateTime> = self.0.try_get(column).map_err(store_error)?;
        let Some(time) = time else {
            return Ok(None);
        };
        let micros = i64::try_from(time.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX);
        timestamp_from_micros(column, micros).map(Some)
    }

    fn bytes(&self, column: &str) -> Result<Vec<u8>> {
        self.0.try_get(column).map_err(store_error)
    }

    fn json(&self, column: &str) -> Result<Value> {
        match self.0.try_get(column) {
            Ok(value) => Ok(value),
            Err(error @ sqlx::Error::ColumnDecode { .. }) => Ok(invalid_json(column, &error)),
            Err(error) => Err(store_error(error)),
        }
    }
}
