//! Writes a batch even if the database rejects one of its rows.
//!
//! A rejected row is rare, because decoding rejects all values that the databases are known to
//! reject. The store splits the batch in half repeatedly until a batch contains only the rejected
//! row. The message of this row becomes a dead letter, and all other rows are written.

use std::collections::HashMap;

use super::{RecorderDeps, RecorderInput, metrics};
use domain::{ClientId, RejectReason, Timestamp};
use protocol::Rejection;
use store::{DeadLetter, PartitionLease, PresenceBatch, StoreError, WriteOutcome};

/// Writes a batch in one transaction. If the database rejects a row, splits the batch and writes
/// the parts in separate transactions.
///
/// `upsert_input_indexes` contains, for each client in `batch.upserts`, the index of its online
/// message in `inputs`.
pub(super) async fn write_batch(
    deps: &RecorderDeps,
    batch: PresenceBatch,
    inputs: &[&RecorderInput],
    upsert_input_indexes: &HashMap<ClientId, usize>,
    leases: &[PartitionLease],
    now: Timestamp,
) -> Result<WriteOutcome, StoreError> {
    let replace_rejected = |batch: PresenceBatch, error: &str| {
        replace_rejected_upsert(batch, error, |client| {
            upsert_input_indexes.get(client).map(|index| inputs[*index])
        })
    };
    store::record_batch_in_parts(&*deps.presence, batch, leases, now, replace_rejected).await
}

/// Replaces the upsert of a rejected batch with a dead letter. `batch` contains either one dead
/// letter or the presence changes of one client. Returns `None` if the batch contains no upsert.
fn replace_rejected_upsert<'a>(
    mut batch: PresenceBatch,
    error: &str,
    find_upsert_input: impl Fn(&ClientId) -> Option<&'a RecorderInput>,
) -> Option<PresenceBatch> {
    let Some(upsert) = batch.upserts.pop() else {
        // The rejected row is a dead letter, a heartbeat or the end of a connection. Such a row
        // cannot become a dead letter, so it is discarded. No known message causes the database to
        // reject such a row.
        metrics::count_discarded_row(error);
        return None;
    };
    let rejection = Rejection::new(
        RejectReason::RejectedByDatabase,
        format!("the database rejected the row: {error}"),
    );
    if let Some(RecorderInput::Message { message, .. }) = find_upsert_input(&upsert.client_id) {
        metrics::count_dead_letter(&message.topic, &rejection);
        let client = Some(upsert.client_id);
        batch
            .dead_letters
            .push(DeadLetter::new(client, message, &rejection));
    }
    Some(batch)
}
