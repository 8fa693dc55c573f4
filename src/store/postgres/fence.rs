//! Who may write for a partition of the queue.

use sqlx::{PgConnection, PgPool, Row as _};

use crate::store::{Fence, QUEUE, StoreError};

pub(super) async fn take(
    pool: &PgPool,
    partitions: &[i32],
    owner: &str,
) -> Result<Vec<Fence>, StoreError> {
    let mut partitions = partitions.to_vec();
    partitions.sort_unstable();
    let rows = sqlx::query(
        "INSERT INTO partition_epoch (queue, partition, epoch, owner)
         SELECT $1, p, 1, $3 FROM UNNEST($2::int[]) AS p
         ON CONFLICT (queue, partition)
         DO UPDATE SET epoch = partition_epoch.epoch + 1, owner = excluded.owner, taken_at = now()
         RETURNING partition, epoch",
    )
    .bind(QUEUE)
    .bind(&partitions)
    .bind(owner)
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Fence {
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
    fences: &[Fence],
) -> Result<Vec<i32>, StoreError> {
    if fences.is_empty() {
        return Ok(Vec::new());
    }
    let partitions: Vec<i32> = fences.iter().map(|fence| fence.partition).collect();
    let rows = sqlx::query(
        "SELECT partition, epoch FROM partition_epoch
          WHERE queue = $1 AND partition = ANY($2) ORDER BY partition FOR SHARE",
    )
    .bind(QUEUE)
    .bind(&partitions)
    .fetch_all(connection)
    .await?;
    let mut present = Vec::with_capacity(rows.len());
    for row in &rows {
        present.push(Fence {
            partition: row.try_get("partition")?,
            epoch: row.try_get("epoch")?,
        });
    }
    Ok(fences
        .iter()
        .filter(|fence| !present.contains(fence))
        .map(|fence| fence.partition)
        .collect())
}
