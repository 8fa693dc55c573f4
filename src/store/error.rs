//! What can go wrong with a database, sorted by what is to be done about it.

use std::path::PathBuf;

/// A statement failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Trying again may help: it is away, busy, full.
    #[error("the database does not answer: {0}")]
    Unavailable(#[source] sqlx::Error),
    /// It will never take this, whenever it is asked: a value, a length, a constraint.
    #[error("the database refuses a row: {0}")]
    RowRejected(#[source] sqlx::Error),
    /// The schema is not the one that this program writes.
    #[error("{0}")]
    Schema(String),
    /// A row reads as nothing that was ever written.
    #[error("the database holds what was never written there: {0}")]
    CorruptRow(String),
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        if is_refusal(&error) {
            Self::RowRejected(error)
        } else {
            Self::Unavailable(error)
        }
    }
}

/// Whether the statement's values were at fault. Whatever is not known to be so is worth another
/// try: wrongly waiting loses nothing.
fn is_refusal(error: &sqlx::Error) -> bool {
    // SQLite's result codes.
    const TOO_BIG: i32 = 18;
    const CONSTRAINT: i32 = 19;
    const MISMATCH: i32 = 20;
    let sqlx::Error::Database(error) = error else {
        return matches!(error, sqlx::Error::Encode(_));
    };
    let code = error.code().unwrap_or_default();
    if error
        .try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
        .is_some()
    {
        // Data exceptions, broken constraints, limits of the program such as an index row's size.
        return ["22", "23", "54"]
            .iter()
            .any(|class| code.starts_with(class));
    }
    // SQLite's extended codes keep the primary one in the lowest byte.
    let primary = code.parse::<i32>().map_or(0, |code| code & 0xff);
    matches!(primary, TOO_BIG | CONSTRAINT | MISMATCH)
}

/// The database could not be opened. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenSqliteError {
    /// The file is damaged, or is no database.
    #[error("the database {} is damaged ({problem}); restore it from a copy, or move it away to start empty (connected clients register again when they reconnect)", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        problem: String,
    },
    /// A newer program wrote it.
    #[error("the database {} was made by a newer version of this program (schema {version}); run that version, or restore a copy from before it", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        version: i64,
    },
    /// It cannot be opened or brought up to date.
    #[error("cannot open the database {}: {problem}; check that its folder is writable and has space", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
}
