//! Rows of the table `connections`, read directly from the database.

/// Columns of the table `connections` that concern tenants. Times are in seconds since 1970, except
/// for `updated_at`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionRow {
    pub org_id: String,
    pub account: String,
    pub tenant_lookup_timestamp: Option<i64>,
    pub tenant_lookup_failure_count: i64,
    pub stale_timestamp: i64,
    /// Time of the last write to the row, in microseconds since 1970. With whole seconds, a test
    /// could not distinguish two writes within one second.
    pub updated_at: i64,
}

/// Reads a client's row from a SQLite database file.
pub async fn read_sqlite_row(path: &std::path::Path, client_id: &str) -> Option<ConnectionRow> {
    use sqlx::Row as _;
    let mut database = open_sqlite(path).await;
    let row = sqlx::query(
        "SELECT org_id, account, tenant_lookup_timestamp / 1000000, tenant_lookup_failure_count,
                stale_timestamp / 1000000, updated_at FROM connections WHERE client_id = ?",
    )
    .bind(client_id)
    .fetch_optional(&mut database)
    .await
    .unwrap()?;
    Some(ConnectionRow {
        org_id: row.get(0),
        account: row.get(1),
        tenant_lookup_timestamp: row.get(2),
        tenant_lookup_failure_count: row.get(3),
        stale_timestamp: row.get(4),
        updated_at: row.get(5),
    })
}

pub(super) async fn open_sqlite(path: &std::path::Path) -> sqlx::SqliteConnection {
    use sqlx::Connection as _;
    let url = format!("sqlite://{}", path.display());
    sqlx::SqliteConnection::connect(&url).await.unwrap()
}

/// Reads a client's row from PostgreSQL.
pub async fn read_postgres_row(
    database: &mut sqlx::PgConnection,
    client_id: &str,
) -> Option<ConnectionRow> {
    use sqlx::Row as _;
    let row = sqlx::query(
        "SELECT org_id, account, floor(EXTRACT(epoch FROM tenant_lookup_timestamp))::bigint,
                tenant_lookup_failure_count::bigint,
                floor(EXTRACT(epoch FROM stale_timestamp))::bigint,
                (EXTRACT(epoch FROM updated_at) * 1000000)::bigint
           FROM connections WHERE client_id = $1",
    )
    .bind(client_id)
    .fetch_optional(database)
    .await
    .unwrap()?;
    Some(ConnectionRow {
        org_id: row.get(0),
        account: row.get(1),
        tenant_lookup_timestamp: row.get(2),
        tenant_lookup_failure_count: row.get(3),
        stale_timestamp: row.get(4),
        updated_at: row.get(5),
    })
}
