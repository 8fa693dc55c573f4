//! Database errors, classified by how the caller must react.

use std::path::PathBuf;

/// Result of a database operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// A database operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database is down, busy or full. A retry can succeed.
    #[error("the database is unavailable: {0}")]
    Unavailable(#[source] sqlx::Error),
    /// The database rejected a value, or the row violates a constraint. A retry with the same row
    /// fails again.
    #[error("the database rejected a row: {0}")]
    RowRejected(#[source] sqlx::Error),
    /// The database does not have the schema that this version of the program needs.
    #[error("{0}")]
    Schema(String),
    /// A row contains a value that no version of the program writes.
    #[error("unexpected value in the database: {0}")]
    CorruptRow(String),
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        if is_row_rejection(&error) {
            Self::RowRejected(error)
        } else {
            Self::Unavailable(error)
        }
    }
}

/// Returns whether the database rejected the values of the statement. Returns false for unknown
/// errors: the caller then retries, and a needless retry does no harm.
fn is_row_rejection(error: &sqlx::Error) -> bool {
    // SQLite result codes.
    const SQLITE_TOOBIG: i32 = 18;
    const SQLITE_CONSTRAINT: i32 = 19;
    const SQLITE_MISMATCH: i32 = 20;
    let sqlx::Error::Database(error) = error else {
        return matches!(error, sqlx::Error::Encode(_));
    };
    let code = error.code().unwrap_or_default();
    // A PostgreSQL error code has five characters. A SQLite result code has at most four digits.
    if code.len() == 5 {
        // Classes of PostgreSQL error codes: data exception, integrity constraint violation,
        // program limit exceeded (for example the size of an index row).
        return ["22", "23", "54"]
            .iter()
            .any(|class| code.starts_with(class));
    }
    // The lowest byte of an extended SQLite result code is the primary code.
    let primary_code = code.parse::<i32>().map_or(0, |code| code & 0xff);
    matches!(
        primary_code,
        SQLITE_TOOBIG | SQLITE_CONSTRAINT | SQLITE_MISMATCH
    )
}

/// The SQLite database cannot be opened. Each error text contains the fix.
#[derive(Debug, thiserror::Error)]
pub enum OpenSqliteError {
    /// The file is damaged or is not a database.
    #[error(
        "the database {} is damaged ({problem}); restore it from a backup, or move it away to \
         start with an empty one (connected clients are recorded again when they reconnect)",
        path.display()
    )]
    Damaged {
        /// Path of the database file.
        path: PathBuf,
        /// Error message of SQLite.
        problem: String,
    },
    /// A newer version of the program created the schema.
    #[error(
        "the database {} was created by a newer version of this program (schema \
         {schema_version}); run that version, or restore a backup made before the upgrade",
        path.display()
    )]
    Newer {
        /// Path of the database file.
        path: PathBuf,
        /// Version of the schema in the file.
        schema_version: i64,
    },
    /// The file cannot be opened or migrated.
    #[error(
        "cannot open the database {}: {problem}; check that its directory is writable and that the \
         disk is not full",
        path.display()
    )]
    Unusable {
        /// Path of the database file.
        path: PathBuf,
        /// Error message of SQLite or the operating system.
        problem: String,
    },
}
