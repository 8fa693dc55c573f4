//! Writes a batch even if the database rejects one of its rows.

use domain::Timestamp;

use crate::batch::{PresenceBatch, SplitBatch};
use crate::error::{Result, StoreError};
use crate::partitions::PartitionLease;
use crate::presence::{PresenceRepository, WriteOutcome};

/// Writes a batch in one transaction. If the database rejects a row, splits the batch repeatedly
/// and writes the parts in separate transactions.
///
/// `replace_rejected` receives a rejected batch that cannot be split, and the error of the
/// database. It returns the batch to write instead, or `None` to discard the rejected batch.
///
/// # Errors
/// If the database is unavailable. Some of the parts can already be durable.
pub async fn record_batch_in_parts(
    repository: &dyn PresenceRepository,
    batch: PresenceBatch,
    leases: &[PartitionLease],
    now: Timestamp,
    mut replace_rejected: impl FnMut(PresenceBatch, &str) -> Option<PresenceBatch>,
) -> Result<WriteOutcome> {
    let mut batches_to_write = vec![batch];
    while let Some(batch) = batches_to_write.pop() {
        match repository.record_batch(&batch, leases, now).await {
            Ok(WriteOutcome::Committed) => {}
            Ok(WriteOutcome::Fenced(lost_leases)) => return Ok(WriteOutcome::Fenced(lost_leases)),
            Err(StoreError::RowRejected(error)) => match batch.split() {
                SplitBatch::Parts(parts) => batches_to_write.extend(parts),
                SplitBatch::Indivisible(batch) => {
                    batches_to_write.extend(replace_rejected(batch, &error.to_string()));
                }
            },
            Err(error) => return Err(error),
        }
    }
    Ok(WriteOutcome::Committed)
}
