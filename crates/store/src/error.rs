//! Database errors, classified by how the caller must react.

/// An error of a database driver.
pub type BoxedError = Box<dyn std::error::Error + Send + Sync>;

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
    RowRejected(#[source] RowRejection),
    /// The database does not have the schema that this version of the program needs.
    #[error("{0}")]
    Schema(String),
    /// A batch was not written, because a row has changed since the recorder read it. Becomes
    /// [`WriteOutcome::Conflict`](crate::WriteOutcome::Conflict).
    #[error("a row has changed since the recorder read it")]
    OutdatedBatch,
    /// A row contains a value that no version of the program writes.
    #[error("unexpected value in the database: {0}")]
    CorruptRow(String),
}

impl StoreError {
    /// Creates an error from an error of the database driver. `rejection_reason` is the reason of
    /// [`RowRejection`] if the database rejected the values of the statement, otherwise `None`.
    pub fn new(
        rejection_reason: Option<String>,
        error: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        match rejection_reason {
            Some(reason) => Self::RowRejected(RowRejection {
                reason,
                error: Box::new(error),
            }),
            None => Self::Unavailable(Box::new(error)),
        }
    }
}

/// The database rejected a row.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RowRejection {
    /// The error code and the constraint, without values of the row. Rows that violate the same
    /// constraint have the same reason.
    pub reason: String,
    /// The error of the database driver.
    #[source]
    pub error: BoxedError,
}
