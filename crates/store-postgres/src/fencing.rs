//! Partition ownership. Only the process with the latest epoch of a partition may write the
//! partition's messages to the database.

use sqlx::{PgConnection, PgPool, Row as _};

use store::{PartitionLease, QueueTopic, StoreError};

pub(super) async fn acquire_partitions(
    pool: &PgPool,
    queue: QueueTopic,
    partitions: &[i32],
    new_owner: &str,
) -> Result<Vec<PartitionLease>, StoreError> {
    let mut partitions = partitions.to_vec();
    partitions.sort_unstable();
    let rows = sqlx::query(
        "INSERT INTO partition_epoch (queue, partition, epoch, owner)
         SELECT $1, p, 1, $3 FROM UNNEST($2::int[]) AS p
         ON CONFLICT (queue, partition) DO UPDATE SET
                epoch = partition_epoch.epoch + 1, owner = excluded.owner, acquired_at = now()
         RETURNING partition, epoch",
    )
    .bind(queue.as_str())
    .bind(&partitions)
    .bind(new_owner)
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(PartitionLease {
                queue,
                partition: row.try_get("partition")?,
                epoch: row.try_get("epoch")?,
            })
        })
        .collect()
}

/// Returns the leases whose epoch is not the current epoch of the partition.
///
/// The query locks the rows of the partitions in share mode until the end of the transaction. A
/// process that acquires one of these partitions waits for the transaction. If another process is
/// already acquiring one of these partitions, the query waits for that process.
pub(super) async fn find_lost_leases(
    connection: &mut PgConnection,
    leases: &[PartitionLease],
) -> Result<Vec<PartitionLease>, StoreError> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let queues: Vec<&str> = leases.iter().map(|lease| lease.queue.as_str()).collect();
    let partitions: Vec<i32> = leases.iter().map(|lease| lease.partition).collect();
    let rows = sqlx::query(
        "SELECT queue, partition, epoch FROM partition_epoch
          WHERE (queue, partition) IN (SELECT * FROM UNNEST($1::text[], $2::int[]))
          ORDER BY queue, partition FOR SHARE",
    )
    .bind(&queues)
    .bind(&partitions)
    .fetch_all(connection)
    .await?;
    let mut current_epochs: Vec<(String, i32, i64)> = Vec::with_capacity(rows.len());
    for row in &rows {
        current_epochs.push((
            row.try_get("queue")?,
            row.try_get("partition")?,
            row.try_get("epoch")?,
        ));
    }
    let is_current = |lease: &PartitionLease| {
        current_epochs.iter().any(|(queue, partition, epoch)| {
            queue == lease.queue.as_str() && *partition == lease.partition && *epoch == lease.epoch
        })
    };
    Ok(leases
        .iter()
        .filter(|lease| !is_current(lease))
        .copied()
        .collect())
}
