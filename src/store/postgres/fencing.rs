//! Who may write for a partition of the queue.

use sqlx::{PgConnection, PgPool, Row as _};

use crate::store::{PartitionLease, QueueTopic, StoreError};

pub(super) async fn take(
    pool: &PgPool,
    queue: QueueTopic,
    partitions: &[i32],
    owner: &str,
) -> Result<Vec<PartitionLease>, StoreError> {
    let mut partitions = partitions.to_vec();
    partitions.sort_unstable();
    let rows = sqlx::query(
        "INSERT INTO partition_epoch (queue, partition, epoch, owner)
         SELECT $1, p, 1, $3 FROM UNNEST($2::int[]) AS p
         ON CONFLICT (queue, partition)
         DO UPDATE SET epoch = partition_epoch.epoch + 1, owner = excluded.owner, taken_at = now()
         RETURNING partition, epoch",
    )
    .bind(queue.as_str())
    .bind(&partitions)
    .bind(owner)
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

/// Partitions whose epoch is another by now. The share lock holds a takeover back until this
/// batch is committed, and this batch back until a takeover is.
pub(super) async fn broken(
    connection: &mut PgConnection,
    fences: &[PartitionLease],
) -> Result<Vec<PartitionLease>, StoreError> {
    if fences.is_empty() {
        return Ok(Vec::new());
    }
    let queues: Vec<&str> = fences.iter().map(|fence| fence.queue.as_str()).collect();
    let partitions: Vec<i32> = fences.iter().map(|fence| fence.partition).collect();
    let rows = sqlx::query(
        "SELECT queue, partition, epoch FROM partition_epoch
          WHERE (queue, partition) IN (SELECT * FROM UNNEST($1::text[], $2::int[]))
          ORDER BY queue, partition FOR SHARE",
    )
    .bind(&queues)
    .bind(&partitions)
    .fetch_all(connection)
    .await?;
    let mut present: Vec<(String, i32, i64)> = Vec::with_capacity(rows.len());
    for row in &rows {
        present.push((
            row.try_get("queue")?,
            row.try_get("partition")?,
            row.try_get("epoch")?,
        ));
    }
    let is_present = |fence: &PartitionLease| {
        present.iter().any(|(queue, partition, epoch)| {
            queue == fence.queue.as_str() && *partition == fence.partition && *epoch == fence.epoch
        })
    };
    Ok(fences
        .iter()
        .filter(|fence| !is_present(fence))
        .copied()
        .collect())
}
