//! Deletes rows whose retention time has passed.

use domain::Timestamp;
use store::{DeadLetterFilter, DeadLetterRepository, MaintenanceRepository, StoreError};

/// Numbers of deleted rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DeletedRows {
    pub disconnected_clients: u64,
    pub dead_letters: u64,
}

/// Deletes clients that disconnected before `disconnected_before`, and dead letters that were last
/// received before `dead_letters_received_before`.
pub(super) async fn delete_expired_rows(
    maintenance: &dyn MaintenanceRepository,
    dead_letters: &dyn DeadLetterRepository,
    disconnected_before: Timestamp,
    dead_letters_received_before: Timestamp,
) -> Result<DeletedRows, StoreError> {
    let expired_dead_letters = DeadLetterFilter {
        received_before: Some(dead_letters_received_before),
        ..DeadLetterFilter::default()
    };
    Ok(DeletedRows {
        disconnected_clients: maintenance
            .delete_clients_disconnected_before(disconnected_before)
            .await?,
        dead_letters: dead_letters
            .purge_dead_letters(&expired_dead_letters)
            .await?,
    })
}
