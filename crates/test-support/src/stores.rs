//! Empty databases for tests of the repositories: SQLite in a temporary folder, and PostgreSQL on
//! the shared server.

use std::ops::Deref;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};
use store::Repositories;
use store_postgres::PostgresStore;
use store_sqlite::SqliteStore;
use tempfile::TempDir;

use crate::deployment::{self, ConnectionRow};
use crate::services;

/// The repositories of an empty database. Dereferences to [`Repositories`].
pub struct TestStore {
    repositories: Repositories,
    database: Database,
}

/// The database of a [`TestStore`], for access without the repositories.
enum Database {
    /// Directory of the SQLite file. The directory is deleted on drop.
    Sqlite(TempDir),
    /// URL of the PostgreSQL database.
    Postgres(String),
}

impl Deref for TestStore {
    type Target = Repositories;

    fn deref(&self) -> &Repositories {
        &self.repositories
    }
}

impl TestStore {
    /// Reads a client's row directly from the database.
    pub async fn row(&self, client_id: &str) -> Option<ConnectionRow> {
        match &self.database {
            Database::Sqlite(folder) => {
                deployment::read_sqlite_row(&folder.path().join("test.db"), client_id).await
            }
            Database::Postgres(url) => {
                let mut database = PgConnection::connect(url).await.unwrap();
                deployment::read_postgres_row(&mut database, client_id).await
            }
        }
    }

    /// Executes a statement directly on the database.
    pub async fn execute(&self, sql: impl Into<String>) {
        let sql = AssertSqlSafe(sql.into());
        match &self.database {
            Database::Sqlite(folder) => {
                let url = format!("sqlite://{}", folder.path().join("test.db").display());
                let mut database = SqliteConnection::connect(&url).await.unwrap();
                sqlx::query(sql).execute(&mut database).await.unwrap();
            }
            Database::Postgres(url) => {
                let mut database = PgConnection::connect(url).await.unwrap();
                sqlx::query(sql).execute(&mut database).await.unwrap();
            }
        }
    }

    /// Inserts an entry of the presence history directly into the database. `org_id` is empty for a
    /// tenantless client.
    pub async fn insert_history(
        &self,
        (client_id, number): (&str, u64),
        at: jiff::Timestamp,
        org_id: &str,
        (status, reason): (&str, &str),
    ) {
        let at = self.time_literal(at);
        self.execute(format!(
            "INSERT INTO presence_history (client_id, number, at, org_id, status, reason)
             VALUES ('{client_id}', {number}, {at}, '{org_id}', '{status}', '{reason}')"
        ))
        .await;
    }

    /// Inserts an event, like a transaction that changes the presence of the client. On PostgreSQL, the
    /// event has no position until it is sequenced.
    pub async fn insert_event(
        &self,
        org_id: &str,
        client_id: &str,
        data: &str,
        at: jiff::Timestamp,
    ) {
        let (table, at) = match &self.database {
            Database::Sqlite(_) => ("events", at.as_microsecond().to_string()),
            Database::Postgres(_) => ("event_outbox", format!("'{at}'")),
        };
        self.execute(format!(
            "INSERT INTO {table} (at, type, org_id, account, client_id, data, previous_dispatchers)
             VALUES ({at}, 'connection.online', '{org_id}', '42', '{client_id}', '{data}',
                    '{{\"old\": {{}}}}')"
        ))
        .await;
    }

    /// Returns a time as a literal for [`Self::execute`].
    #[must_use]
    pub fn time_literal(&self, time: jiff::Timestamp) -> String {
        match &self.database {
            Database::Sqlite(_) => time.as_microsecond().to_string(),
            Database::Postgres(_) => format!("timestamptz '{time}'"),
        }
    }

    /// Locks the client's row in `connections` until the returned connection is closed. Panics if
    /// the database is SQLite, which has no row locks.
    pub async fn lock_row(&self, client_id: &str) -> PgConnection {
        let Database::Postgres(url) = &self.database else {
            panic!("SQLite has no row locks");
        };
        let mut database = PgConnection::connect(url).await.unwrap();
        sqlx::query("BEGIN").execute(&mut database).await.unwrap();
        let lock = "SELECT client_id FROM connections WHERE client_id = $1 FOR UPDATE";
        let lock = sqlx::query(lock).bind(client_id);
        lock.fetch_one(&mut database).await.unwrap();
        database
    }

    /// Makes the database reject every later insert into `table` of a row with this value in the
    /// text column `column`.
    pub async fn reject_rows(&self, table: &str, column: &str, value: &str) {
        let sql = match &self.database {
            Database::Sqlite(_) => format!(
                "CREATE TRIGGER reject_{table} BEFORE INSERT ON {table}
                   WHEN NEW.{column} = '{value}'
                  BEGIN SELECT RAISE(ABORT, 'rejected by the test'); END"
            ),
            Database::Postgres(_) => format!(
                "ALTER TABLE {table} ADD CONSTRAINT reject_{table} CHECK ({column} <> '{value}')"
            ),
        };
        self.execute(sql).await;
    }

    /// Makes the database reject every later change of `stale_timestamp` in `connections` to a time
    /// that is not in the distant past.
    pub async fn reject_delivered_reports(&self) {
        self.execute(match &self.database {
            Database::Sqlite(_) => {
                "CREATE TRIGGER reject_reports BEFORE UPDATE ON connections
                   WHEN NEW.stale_timestamp > 0
                  BEGIN SELECT RAISE(ABORT, 'rejected by the test'); END"
            }
            Database::Postgres(_) => {
                "ALTER TABLE connections
                   ADD CONSTRAINT reject_reports CHECK (stale_timestamp <= 'epoch')"
            }
        })
        .await;
    }
}

/// Creates a SQLite database.
pub async fn open_sqlite() -> TestStore {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("test.db"))
        .await
        .unwrap();
    TestStore {
        repositories: Repositories::new(store),
        database: Database::Sqlite(folder),
    }
}

/// Creates a database with the current schema on the PostgreSQL server that all tests share.
pub async fn open_postgres() -> TestStore {
    let port = services::shared_services().await.postgres_port;
    let database_name = services::create_migrated_database().await;
    let settings = services::postgres_config(port, &database_name);
    TestStore {
        repositories: Repositories::new(PostgresStore::new(&settings)),
        database: Database::Postgres(format!(
            "postgres://cc:cc-secret@127.0.0.1:{port}/{database_name}?sslmode=disable"
        )),
    }
}
