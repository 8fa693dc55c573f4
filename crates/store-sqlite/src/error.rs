//! Errors of SQLite: classification, and errors of opening the database file.

use std::path::PathBuf;

use store::StoreError;

// SQLite result codes.
const SQLITE_CORRUPT: i32 = 11;
const SQLITE_TOOBIG: i32 = 18;
const SQLITE_CONSTRAINT: i32 = 19;
const SQLITE_MISMATCH: i32 = 20;
const SQLITE_NOTADB: i32 = 26;

/// Converts an error of the driver. SQLite can reject the values of a statement. Unknown errors are
/// no rejections: the caller then retries, and a needless retry does no harm.
pub(crate) fn store_error(error: sqlx::Error) -> StoreError {
    let reason = match result_code(&error) {
        Some(SQLITE_TOOBIG | SQLITE_CONSTRAINT | SQLITE_MISMATCH) => Some(rejection_reason(&error)),
        Some(_) => None,
        None => matches!(error, sqlx::Error::Encode(_)).then(|| "encode".to_owned()),
    };
    StoreError::new(reason, error)
}

/// Returns the error code and the message, without the digits of the message. The message contains
/// the name of the constraint. Digits are removed, because they can be a value of the row.
fn rejection_reason(error: &sqlx::Error) -> String {
    let Some(error) = error.as_database_error() else {
        return String::new();
    };
    let code = error.code().unwrap_or_default();
    let message = error.message().chars().filter(|c| !c.is_ascii_digit());
    format!("{code} {}", message.collect::<String>())
}

/// Returns whether the database file is damaged or is not a database.
pub(crate) fn is_damaged(error: &sqlx::Error) -> bool {
    matches!(result_code(error), Some(SQLITE_CORRUPT | SQLITE_NOTADB))
}

/// Returns the primary result code: the lowest byte of an extended result code.
fn result_code(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error()?.code()?;
    code.parse::<i32>().ok().map(|code| code & 0xff)
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
