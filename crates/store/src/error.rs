//! Database errors, classified by how the caller must react.

/// An error of a database driver.
type BoxedError = Box<dyn std::error::Error + Send + Sync>;

/// Result of a database operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// A database operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database is down, busy or full. A retry can succeed.
    #[error("the database is unavailable: {0}")]
    Unavailable(#[source] BoxedError),
    /// The database rejected a value, or the row violates a constraint. A retry with the same row
    /// fails again.
    #[error("the database rejected a row: {0}")]
    RowRejected(#[source] BoxedError),
    /// The database does not have the schema that this version of the program needs.
    #[error("{0}")]
    Schema(String),
    /// A row contains a value that no version of the program writes.
    #[error("unexpected value in the database: {0}")]
    CorruptRow(String),
}

impl StoreError {
    /// Creates an error from an error of the database driver. `is_row_rejection` is true if the
    /// database rejected the values of the statement.
    pub fn new(
        is_row_rejection: bool,
        error: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        if is_row_rejection {
            Self::RowRejected(Box::new(error))
        } else {
            Self::Unavailable(Box::new(error))
        }
    }
}
