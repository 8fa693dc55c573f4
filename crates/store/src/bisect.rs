//! Writes a batch even if the database rejects one of its rows.

use domain::Timestamp;

use crate::batch::{PresenceBatch, SplitBatch};
use crate::error::{Result, RowRejection, StoreError};
use crate::partitions::PartitionLease;
use crate::presence::{PresenceRepository, WriteOutcome};

/// A part of a batch that the database rejects and that cannot be split, see
/// [`SplitBatch::Indivisible`].
#[derive(Debug)]
pub struct RejectedPart {
    /// The rows of the part. None of them is written.
    pub rows: PresenceBatch,
    /// Why the database rejects the part.
    pub rejection: RowRejection,
}

/// Receives the result of each part of a batch.
pub trait PartsObserver: Send {
    /// Called after a part was written in its own transaction.
    fn on_committed(&mut self, part: &PresenceBatch);

    /// Called for each rejected part.
    fn on_rejected(&mut self, part: RejectedPart);
}

/// Writes a batch in one transaction. If the database rejects a row, splits the batch repeatedly
/// and writes the parts in separate transactions.
///
/// # Errors
/// If the database is unavailable. Some of the parts can already be durable.
pub async fn record_batch_in_parts(
    repository: &dyn PresenceRepository,
    batch: PresenceBatch,
    leases: &[PartitionLease],
    now: Timestamp,
    observer: &mut dyn PartsObserver,
) -> Result<WriteOutcome> {
    let mut batches_to_write = vec![batch];
    while let Some(batch) = batches_to_write.pop() {
        match repository.record_batch(&batch, leases, now).await {
            Ok(WriteOutcome::Committed) => observer.on_committed(&batch),
            Ok(outcome @ (WriteOutcome::Fenced(_) | WriteOutcome::Conflict)) => return Ok(outcome),
            Err(StoreError::RowRejected(rejection)) => match batch.split() {
                SplitBatch::Parts(parts) => batches_to_write.extend(parts),
                SplitBatch::Indivisible(rows) => {
                    observer.on_rejected(RejectedPart { rows, rejection });
                }
            },
            Err(error) => return Err(error),
        }
    }
    Ok(WriteOutcome::Committed)
}
