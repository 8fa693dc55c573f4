//! Deletes rows whose retention time has passed.

use crate::domain::Timestamp;
use crate::store::{DeadLetterFilter, Store, StoreError};

/// Numbers of deleted rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Deleted {
    pub disconnected_clients: u64,
    pub dead_letters: u64,
}

/// Deletes clients that disconnected, and dead letters that were received, before the given times.
pub(super) async fn delete_expired(
    store: &dyn Store,
    disconnected_before: Timestamp,
    dead_letters_before: Timestamp,
) -> Result<Deleted, StoreError> {
    let expired_dead_letters = DeadLetterFilter {
        received_before: Some(dead_letters_before),
        ..DeadLetterFilter::default()
    };
    Ok(Deleted {
        disconnected_clients: store
            .delete_disconnected_before(disconnected_before)
            .await?,
        dead_letters: store.purge_dead_letters(&expired_dead_letters).await?,
    })
}
