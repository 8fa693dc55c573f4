//! Opens the database file. Creates a missing file, checks an existing file for damage, and applies
//! pending migrations.

use std::path::Path;
use std::time::Duration;

use sqlx::migrate::{Migrate as _, MigrateError};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Connection as _, Row as _, SqliteConnection, SqlitePool};

use super::SqliteStore;
use super::database::{FIND_MIGRATIONS_TABLE, QUICK_CHECK};
use super::database_files::DatabaseFiles;
use super::driver::sqlite_query;
use super::error::{OpenSqliteError, is_damaged};
use super::migrations::MIGRATIONS;

const MAX_READER_CONNECTIONS: u32 = 4;

/// Size of the page cache of the writer. It holds the indexes of 20,000 clients. With the default of 2,000 KiB, a
/// batch reads most pages of the indexes again.
const WRITER_CACHE_KIB: u32 = 8192;

/// Maximum size of a file that is checked for damage at startup. The check of a file of this size
/// takes milliseconds. Only the `doctor` command checks larger files.
const MAX_STARTUP_CHECK_BYTES: u64 = 32 * 1024 * 1024;

impl SqliteStore {
    /// Opens the file and applies pending migrations. Creates the file if it does not exist.
    ///
    /// # Errors
    /// If the file is damaged, cannot be opened, or has a newer schema.
    pub async fn open(path: &Path) -> Result<Self, OpenSqliteError> {
        let size = std::fs::metadata(path).map_or(0, |file| file.len());
        if size > 0 && size <= MAX_STARTUP_CHECK_BYTES {
            check_integrity(path).await?;
        }
        let idle_connection =
            open_pool(path, connect_options(path).create_if_missing(true), 1).await?;
        MIGRATIONS
            .run(&idle_connection)
            .await
            .map_err(|error| migrate_error(path, error))?;
        let options = connect_options(path).pragma("cache_size", format!("-{WRITER_CACHE_KIB}"));
        let writer = open_pool(path, options, 1).await?;
        let readers = open_pool(path, connect_options(path), MAX_READER_CONNECTIONS).await?;
        let files = DatabaseFiles::at_path(path).map_err(|error| OpenSqliteError::Unusable {
            path: path.into(),
            problem: error.to_string(),
        })?;
        Ok(Self {
            writer,
            readers,
            idle_connection,
            files,
            writes_events: true,
        })
    }
}

async fn open_pool(
    path: &Path,
    options: SqliteConnectOptions,
    max_connections: u32,
) -> Result<SqlitePool, OpenSqliteError> {
    let pool = SqlitePoolOptions::new()
        .max_connections(max_connections)
        // All connections are opened at the start. A connection that is opened later could open
        // another file, if the database file was replaced.
        .min_connections(max_connections)
        // Idle connections stay open. They cost nothing, and opening a connection again would delay
        // a request.
        .idle_timeout(None)
        .max_lifetime(None)
        .acquire_timeout(Duration::from_secs(5))
        .connect_with(options);
    pool.await.map_err(|error| open_error(path, &error))
}

/// Returns options for a file that exists. A connection that is opened later must not create a database without
/// a schema.
fn connect_options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(5))
}

/// Checks the whole file for damage.
///
/// # Errors
/// If the file is damaged or cannot be read.
pub async fn check_integrity(path: &Path) -> Result<(), OpenSqliteError> {
    let result: Result<String, sqlx::Error> = async {
        let mut connection = SqliteConnection::connect_with(&connect_options(path)).await?;
        let row = sqlite_query(&QUICK_CHECK.with([]))
            .fetch_one(&mut connection)
            .await?;
        let message = row.try_get(0)?;
        connection.close().await?;
        Ok(message)
    }
    .await;
    match result {
        Ok(message) if message == "ok" => Ok(()),
        Ok(problem) => Err(OpenSqliteError::Damaged {
            path: path.into(),
            problem: problem.replace('\n', " "),
        }),
        Err(error) => Err(open_error(path, &error)),
    }
}

/// Returns whether the file has the schema of this version of the program. Does not change the
/// file.
///
/// # Errors
/// If the file cannot be read or has a newer schema.
pub async fn is_schema_current(path: &Path) -> Result<bool, OpenSqliteError> {
    let applied_versions: Result<Vec<i64>, MigrateError> = async {
        let mut connection = SqliteConnection::connect_with(&connect_options(path)).await?;
        let migrations_table = sqlite_query(&FIND_MIGRATIONS_TABLE.with([]))
            .fetch_optional(&mut connection)
            .await?;
        let applied_migrations = match migrations_table {
            Some(_) => {
                connection
                    .list_applied_migrations("_sqlx_migrations")
                    .await?
            }
            None => Vec::new(),
        };
        connection.close().await?;
        Ok(applied_migrations
            .into_iter()
            .map(|migration| migration.version)
            .collect())
    }
    .await;
    let applied_versions = applied_versions.map_err(|error| migrate_error(path, error))?;
    if let Some(newer_version) = applied_versions
        .iter()
        .find(|version| !MIGRATIONS.version_exists(**version))
    {
        return Err(OpenSqliteError::Newer {
            path: path.into(),
            schema_version: *newer_version,
        });
    }
    Ok(MIGRATIONS
        .iter()
        .all(|migration| applied_versions.contains(&migration.version)))
}

fn migrate_error(path: &Path, error: MigrateError) -> OpenSqliteError {
    match error {
        MigrateError::VersionMissing(version) => OpenSqliteError::Newer {
            path: path.into(),
            schema_version: version,
        },
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
            open_error(path, &error)
        }
        error => OpenSqliteError::Unusable {
            path: path.into(),
            problem: error.to_string(),
        },
    }
}

fn open_error(path: &Path, error: &sqlx::Error) -> OpenSqliteError {
    let problem = error.as_database_error().map_or_else(
        || error.to_string(),
        |database| database.message().to_owned(),
    );
    if is_damaged(error) {
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
