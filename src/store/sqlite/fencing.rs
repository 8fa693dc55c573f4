//! Who may write for a partition of the queue.

use sqlx::{SqliteConnection, SqlitePool};

use crate::store::{PartitionLease, QueueTopic, StoreError};

pub(super) async fn take(
    pool: &SqlitePool,
    queue: QueueTopic,
    partitions: &[i32],
    owner: &str,
) -> Result<Vec<PartitionLease>, StoreError> {
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    let mut fences = Vec::with_capacity(partitions.len());
    for partition in partitions {
        let epoch = sqlx::query_scalar(
            "INSERT INTO partition_epoch (queue, partition, epoch, owner) VALUES (?, ?, 1, ?)
             ON CONFLICT (queue, partition)
             DO UPDATE SET epoch = partition_epoch.epoch + 1, owner = excluded.owner
             RETURNING epoch",
        )
        .bind(queue.as_str())
        .bind(partition)
        .bind(owner)
        .fetch_one(&mut *transaction)
        .await?;
        fences.push(PartitionLease {
            queue,
            partition: *partition,
            epoch,
        });
    }
    transaction.commit().await?;
    Ok(fences)
}

/// Partitions whose epoch is another by now. The transaction is the only writer there is.
pub(super) async fn broken(
    connection: &mut SqliteConnection,
    fences: &[PartitionLease],
) -> Result<Vec<PartitionLease>, StoreError> {
    let mut broken = Vec::new();
    for fence in fences {
        let epoch: Option<i64> = sqlx::query_scalar(
            "SELECT epoch FROM partition_epoch WHERE queue = ? AND partition = ?",
        )
        .bind(fence.queue.as_str())
        .bind(fence.partition)
        .fetch_optional(&mut *connection)
        .await?;
        if epoch != Some(fence.epoch) {
            broken.push(*fence);
        }
    }
    Ok(broken)
}
