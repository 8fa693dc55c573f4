//! The SQLite implementation of the repositories, for embedded deployments: one file, one writer
//! connection, several reader connections.
//!
//! `store::sql` implements the repositories for [`SqliteStore`]. This crate contains the driver,
//! the schema, and the statements that only SQLite accepts.

mod answers;
mod connect;
mod database;
mod database_files;
mod driver;
mod error;
mod guarded_connection;
mod history;
mod inserts;
mod migrations;
mod search;
mod search_signature;
mod tenant_changes;
mod transaction;

use sqlx::SqlitePool;

pub use connect::{check_integrity, is_schema_current};
pub use database_files::{DatabaseFiles, FileCheckError, LostFile, OpenFile};
pub use error::OpenSqliteError;

/// An open database file. A committed transaction remains stored after a power failure
/// (`synchronous=FULL`).
#[derive(Debug, Clone)]
pub struct SqliteStore {
    /// Pool of one connection, because SQLite allows only one writer at a time. Write operations
    /// wait for this connection. With several connections, a write could fail with SQLITE_BUSY.
    writer: SqlitePool,
    readers: SqlitePool,
    /// Pool of one connection that is open and idle until the store closes. The other pools close
    /// connections after errors. If SQLite had no open connection for a moment, it would delete the
    /// write-ahead log, and then create a new one.
    idle_connection: SqlitePool,
    files: DatabaseFiles,
    writes_events: bool,
}

impl SqliteStore {
    /// Sets whether the store writes events. The default is true.
    #[must_use]
    pub fn with_events(mut self, writes_events: bool) -> Self {
        self.writes_events = writes_events;
        self
    }

    /// Returns the open files of the database.
    #[must_use]
    pub fn files(&self) -> &DatabaseFiles {
        &self.files
    }
}

/// Returns the name and the text of every statement of this crate. A query whose text depends on
/// its conditions or on its number of rows has several texts. Tests prepare all texts on the
/// migrated schema.
#[must_use]
pub fn statements() -> Vec<(&'static str, String)> {
    let lists = [
        answers::STATEMENTS,
        database::STATEMENTS,
        guarded_connection::STATEMENTS,
        history::STATEMENTS,
        tenant_changes::STATEMENTS,
        transaction::STATEMENTS,
    ];
    let mut all = store::sql::texts(&database::SHARED_STATEMENTS, &lists);
    all.extend(search::example_queries());
    all.extend(inserts::example_inserts());
    all
}
