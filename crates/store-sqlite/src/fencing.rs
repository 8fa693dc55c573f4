//! Partition ownership. Only the process with the latest epoch of a partition may write the
//! partition's messages to the database.

use sqlx::{SqliteConnection, SqlitePool};

use store::{PartitionLease, QueueTopic, StoreError};

pub(super) async fn acquire_partitions(
    pool: &SqlitePool,
    queue: QueueTopic,
    partitions: &[i32],
    new_owner: &str,
) -> Result<Vec<PartitionLease>, StoreError> {
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    let mut leases = Vec::with_capacity(partitions.len());
    for partition in partitions {
        let epoch = sqlx::query_scalar(
            "INSERT INTO partition_epoch (queue, partition, epoch, owner) VALUES (?, ?, 1, ?)
             ON CONFLICT (queue, partition)
             DO UPDATE SET epoch = partition_epoch.epoch + 1, owner = excluded.owner
             RETURNING epoch",
        )
        .bind(queue.as_str())
        .bind(partition)
        .bind(new_owner)
        .fetch_one(&mut *transaction)
        .await?;
        leases.push(PartitionLease {
            queue,
            partition: *partition,
            epoch,
        });
    }
    transaction.commit().await?;
    Ok(leases)
}

/// Returns the leases whose epoch is not the current epoch of the partition. The caller must start
/// a write transaction first, so no other process can acquire a partition until the batch commits.
pub(super) async fn find_lost_leases(
    connection: &mut SqliteConnection,
    leases: &[PartitionLease],
) -> Result<Vec<PartitionLease>, StoreError> {
    let mut lost_leases = Vec::new();
    for lease in leases {
        let epoch: Option<i64> = sqlx::query_scalar(
            "SELECT epoch FROM partition_epoch WHERE queue = ? AND partition = ?",
        )
        .bind(lease.queue.as_str())
        .bind(lease.partition)
        .fetch_optional(&mut *connection)
        .await?;
        if epoch != Some(lease.epoch) {
            lost_leases.push(*lease);
        }
    }
    Ok(lost_leases)
}
