//! Classification of PostgreSQL errors.

use store::StoreError;

/// Converts an error of the driver.
pub(crate) fn store_error(error: sqlx::Error) -> StoreError {
    StoreError::new(is_row_rejection(&error), error)
}

/// Returns whether PostgreSQL rejected the values of the statement. Returns false for unknown
/// errors: the caller then retries, and a needless retry does no harm.
fn is_row_rejection(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else {
        return matches!(error, sqlx::Error::Encode(_));
    };
    let code = error.code().unwrap_or_default();
    // Classes of PostgreSQL error codes: data exception, integrity constraint violation, program
    // limit exceeded (for example the size of an index row).
    ["22", "23", "54"]
        .iter()
        .any(|class| code.starts_with(class))
}

/// Creates the error of a server that does not respond.
pub(crate) fn unavailable(problem: String) -> StoreError {
    StoreError::Unavailable(problem.into())
}
