//! Classification of PostgreSQL errors.

use sqlx::error::DatabaseError;
use store::StoreError;

/// Error code of the function `reject_outdated_batch`.
const OUTDATED_BATCH: &str = "CC001";

/// Converts an error of the driver.
pub(crate) fn store_error(error: sqlx::Error) -> StoreError {
    let code = error.as_database_error().and_then(DatabaseError::code);
    if code.is_some_and(|code| code == OUTDATED_BATCH) {
        return StoreError::OutdatedBatch;
    }
    StoreError::new(rejection_reason(&error), error)
}

/// Returns the error code and the constraint if PostgreSQL rejected the values of the statement.
/// Returns `None` for unknown errors: the caller then retries, and a needless retry does no harm.
fn rejection_reason(error: &sqlx::Error) -> Option<String> {
    let sqlx::Error::Database(error) = error else {
        let is_encode_error = matches!(error, sqlx::Error::Encode(_));
        return is_encode_error.then(|| "encode".to_owned());
    };
    let code = error.code().unwrap_or_default();
    // Classes of PostgreSQL error codes: data exception, integrity constraint violation, program
    // limit exceeded (for example the size of an index row).
    let is_rejection = ["22", "23", "54"]
        .iter()
        .any(|class| code.starts_with(class));
    is_rejection.then(|| match error.constraint() {
        Some(constraint) => format!("{code} {constraint}"),
        None => code.into_owned(),
    })
}

/// Creates the error of a server that does not respond.
pub(crate) fn unavailable(problem: String) -> StoreError {
    StoreError::Unavailable(problem.into())
}
