//! Runs statements with sqlx, and converts between SQLite types and Rust types. A time is stored as
//! microseconds since 1970, and JSON as text.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use serde_json::{Value, json};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, Row as _, Sqlite, SqliteExecutor};

use crate::error::store_error;
use domain::Timestamp;
use store::Result;
use store::sql::{ColumnReader, Parameter, Query, RowVisitor, invalid_json, timestamp_from_micros};

pub(crate) type SqliteQuery = sqlx::query::Query<'static, Sqlite, SqliteArguments>;

/// Converts a query of `store::sql`. A list becomes a JSON array, which is a single parameter for
/// any number of elements.
pub(crate) fn sqlite_query(query: &Query<'_>) -> SqliteQuery {
    let mut bound = match query.sql() {
        Cow::Borrowed(text) => sqlx::query(*text),
        Cow::Owned(text) => sqlx::query(AssertSqlSafe(text.clone())),
    };
    for parameter in query.parameters() {
        bound = match parameter {
            Parameter::Text(value) => bound.bind(value.as_deref()),
            Parameter::TextList(values) => bound.bind(json!(values).to_string()),
            Parameter::Integer(value) => bound.bind(*value),
            Parameter::Timestamp(value) => bound.bind(value.map(Timestamp::as_microsecond)),
        };
    }
    bound.persistent(query.is_cached())
}

pub(crate) async fn fetch_all<'c, E>(executor: E, query: SqliteQuery) -> Result<Vec<Row>>
where
    E: SqliteExecutor<'c>,
{
    let found = query.fetch_all(executor).await;
    Ok(found.map_err(store_error)?.into_iter().map(Row).collect())
}

/// Time after which a task that visits rows lets other tasks run. The visitor of a large row can need
/// a millisecond, and the next row is usually available at once.
const MAX_BUSY_TIME: Duration = Duration::from_millis(1);

/// Passes each row to `visit` as soon as it is read, until `visit` returns `Break`. SQLite does not
/// compute the following rows.
pub(crate) async fn visit_rows<'c, E>(
    executor: E,
    query: SqliteQuery,
    visit: RowVisitor<'_, Row>,
) -> Result<()>
where
    E: SqliteExecutor<'c>,
{
    let mut rows = query.fetch(executor);
    let mut busy_since = Instant::now();
    while let Some(row) = rows.try_next().await.map_err(store_error)? {
        if visit(Row(row))?.is_break() {
            break;
        }
        if busy_since.elapsed() > MAX_BUSY_TIME {
            tokio::task::yield_now().await;
            busy_since = Instant::now();
        }
    }
    Ok(())
}

/// Returns the number of changed rows.
pub(crate) async fn execute<'c, E>(executor: E, query: SqliteQuery) -> Result<u64>
where
    E: SqliteExecutor<'c>,
{
    let outcome = query.execute(executor).await;
    Ok(outcome.map_err(store_error)?.rows_affected())
}

/// A row of a result.
pub struct Row(SqliteRow);

impl Row {
    fn read<'r, T>(&'r self, column: &str) -> Result<T>
    where
        T: sqlx::Decode<'r, Sqlite> + sqlx::Type<Sqlite>,
    {
        self.0.try_get(column).map_err(store_error)
    }
}

impl ColumnReader for Row {
    fn optional_text(&self, column: &str) -> Result<Option<String>> {
        self.read(column)
    }

    fn optional_integer(&self, column: &str) -> Result<Option<i64>> {
        self.read(column)
    }

    fn optional_timestamp(&self, column: &str) -> Result<Option<Timestamp>> {
        let micros: Option<i64> = self.read(column)?;
        micros
            .map(|micros| timestamp_from_micros(column, micros))
            .transpose()
    }

    fn bytes(&self, column: &str) -> Result<Vec<u8>> {
        self.read(column)
    }

    fn json(&self, column: &str) -> Result<Value> {
        let text: &str = self.read(column)?;
        Ok(serde_json::from_str(text).unwrap_or_else(|error| invalid_json(column, &error)))
    }
}
