//! Opening: make what is missing, refuse what is damaged or newer, bring the schema up to date.

use std::path::Path;
use std::time::Duration;

use sqlx::migrate::{Migrate as _, MigrateError, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Connection as _, SqliteConnection, SqlitePool};

use super::SqliteStore;
use crate::store::OpenSqliteError;

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/sqlite");

const READERS: u32 = 4;

/// A check of the whole file is done at start up to this size: it takes milliseconds. A larger one
/// is left to `doctor`.
const CHECKED_AT_START: u64 = 32 * 1024 * 1024;

impl SqliteStore {
    /// Opens the file, makes it if it is not there, and brings its schema up to date.
    ///
    /// # Errors
    /// [`OpenSqliteError`], each with what to do about it.
    pub async fn open(path: &Path) -> Result<Self, OpenSqliteError> {
        let size = std::fs::metadata(path).map_or(0, |file| file.len());
        if size > 0 && size <= CHECKED_AT_START {
            check(path).await?;
        }
        let writer = pool(path, 1).await.map_err(|error| sort(path, &error))?;
        MIGRATIONS
            .run(&writer)
            .await
            .map_err(|error| sort_migration(path, error))?;
        let readers = pool(path, READERS)
            .await
            .map_err(|error| sort(path, &error))?;
        Ok(Self { writer, readers })
    }
}

async fn pool(path: &Path, connections: u32) -> Result<SqlitePool, sqlx::Error> {
    SqlitePoolOptions::new()
        .max_connections(connections)
        .min_connections(1)
        // A connection that is idle costs nothing and reopening one would cost a request.
        .idle_timeout(None)
        .max_lifetime(None)
        .acquire_timeout(Duration::from_secs(5))
        .connect_with(options(path).create_if_missing(true))
        .await
}

fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(5))
}

/// Reads the whole file for damage.
///
/// # Errors
/// [`OpenSqliteError`] when there is some, or it cannot be read.
pub async fn check(path: &Path) -> Result<(), OpenSqliteError> {
    let verdict: Result<String, sqlx::Error> = async {
        let mut connection = SqliteConnection::connect_with(&options(path)).await?;
        let verdict = sqlx::query_scalar("PRAGMA quick_check(1)")
            .fetch_one(&mut connection)
            .await?;
        connection.close().await?;
        Ok(verdict)
    }
    .await;
    match verdict {
        Ok(ok) if ok == "ok" => Ok(()),
        Ok(problem) => Err(OpenSqliteError::Damaged {
            path: path.into(),
            problem: problem.replace('\n', " "),
        }),
        Err(error) => Err(sort(path, &error)),
    }
}

/// Whether the file's schema is the one that this program writes. Changes nothing.
///
/// # Errors
/// [`OpenSqliteError`] when it cannot be read, or is newer.
pub async fn schema_is_current(path: &Path) -> Result<bool, OpenSqliteError> {
    let applied: Result<Vec<i64>, MigrateError> = async {
        let mut connection = SqliteConnection::connect_with(&options(path)).await?;
        let table = "_sqlx_migrations";
        let made: Option<i64> = sqlx::query_scalar("SELECT 1 FROM sqlite_master WHERE name = ?")
            .bind(table)
            .fetch_optional(&mut connection)
            .await?;
        let applied = match made {
            Some(_) => connection.list_applied_migrations(table).await?,
            None => Vec::new(),
        };
        connection.close().await?;
        Ok(applied.into_iter().map(|applied| applied.version).collect())
    }
    .await;
    let applied = applied.map_err(|error| sort_migration(path, error))?;
    if let Some(newer) = applied
        .iter()
        .find(|version| !MIGRATIONS.version_exists(**version))
    {
        return Err(OpenSqliteError::Newer {
            path: path.into(),
            version: *newer,
        });
    }
    Ok(MIGRATIONS
        .iter()
        .all(|migration| applied.contains(&migration.version)))
}

fn sort_migration(path: &Path, error: MigrateError) -> OpenSqliteError {
    match error {
        MigrateError::VersionMissing(version) => OpenSqliteError::Newer {
            path: path.into(),
            version,
        },
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
            sort(path, &error)
        }
        error => OpenSqliteError::Unusable {
            path: path.into(),
            problem: error.to_string(),
        },
    }
}

fn sort(path: &Path, error: &sqlx::Error) -> OpenSqliteError {
    let problem = match error {
        sqlx::Error::Database(database) => database.message().to_owned(),
        error => error.to_string(),
    };
    // SQLITE_CORRUPT and SQLITE_NOTADB; the code's low byte is the kind.
    let damaged = error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)
        .and_then(|code| code.parse::<i32>().ok())
        .is_some_and(|code| matches!(code & 0xff, 11 | 26));
    if damaged {
        OpenSqliteError::Damaged {
            path: path.into(),
            problem,
        }
    } else {
        OpenSqliteError::Unusable {
            path: path.into(),
            problem,
        }
    }
}
