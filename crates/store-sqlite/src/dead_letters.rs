//! Dead letters: insert, list, replay and purge.

use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row as _, Sqlite, SqliteConnection, SqlitePool};

use super::row;
use domain::{ClientId, Timestamp};
use store::{DeadLetter, DeadLetterFilter, DeadLetterLimits, StoreError, StoredDeadLetter};

/// Maximum number of rows per INSERT statement. This limits the size of the statement, because a
/// row contains up to 64 KiB of payload.
const MAX_ROWS_PER_INSERT: usize = 100;

/// Inserts dead letters, then deletes the oldest dead letters above the limits. If a message is
/// already stored, its row is updated and `occurrences` is incremented.
pub(super) async fn insert_dead_letters(
    connection: &mut SqliteConnection,
    dead_letters: &[DeadLetter],
    limits: DeadLetterLimits,
) -> Result<(), StoreError> {
    for chunk in dead_letters.chunks(MAX_ROWS_PER_INSERT) {
        let mut insert = QueryBuilder::<Sqlite>::new(
            "INSERT INTO dead_letters (client_id, fingerprint, topic, payload, size, sha256, \
             reason, detail, first_received, last_received) ",
        );
        insert.push_values(chunk, |mut row, dead_letter| {
            row.push_bind(dead_letter.client_id_column())
                .push_bind(dead_letter.fingerprint())
                .push_bind(&dead_letter.topic)
                .push_bind(&dead_letter.payload[..])
                .push_bind(i64::try_from(dead_letter.payload_size).unwrap_or(i64::MAX))
                .push_bind(&dead_letter.sha256)
                .push_bind(dead_letter.reason.as_str())
                .push_bind(&dead_letter.detail)
                .push_bind(dead_letter.received_at.as_microsecond())
                .push_bind(dead_letter.received_at.as_microsecond());
        });
        insert.push(
            " ON CONFLICT (client_id, fingerprint) DO UPDATE SET \
             reason = excluded.reason, detail = excluded.detail, \
             occurrences = dead_letters.occurrences + 1, \
             last_received = excluded.last_received, replay_requested_at = NULL",
        );
        insert
            .build()
            .persistent(false)
            .execute(&mut *connection)
            .await?;
    }
    let mut client_ids: Vec<&str> = dead_letters
        .iter()
        .map(DeadLetter::client_id_column)
        .collect();
    client_ids.sort_unstable();
    client_ids.dedup();
    sqlx::query(
        "DELETE FROM dead_letters WHERE id IN (
             SELECT id FROM (
                 SELECT id, row_number() OVER (
                            PARTITION BY client_id ORDER BY last_received DESC, id DESC) AS age_rank
                   FROM dead_letters WHERE client_id IN (SELECT value FROM json_each(?1)))
              WHERE age_rank > ?2)",
    )
    .bind(serde_json::json!(client_ids).to_string())
    .bind(limits.max_dead_letters_per_client)
    .execute(&mut *connection)
    .await?;
    // Keeps only rows whose id is among the last `max_dead_letters` ids, so at most this number of
    // rows remain. A statement that counts the rows would take longer.
    sqlx::query("DELETE FROM dead_letters WHERE id <= (SELECT max(id) FROM dead_letters) - ?")
        .bind(limits.max_dead_letters)
        .execute(connection)
        .await?;
    Ok(())
}

pub(super) async fn list_dead_letters(
    pool: &SqlitePool,
    filter: &DeadLetterFilter,
    limit: u32,
) -> Result<Vec<StoredDeadLetter>, StoreError> {
    let mut query = QueryBuilder::new(
        "SELECT id, client_id, topic, x'' AS payload, size, sha256, reason, detail, \
         occurrences, first_received, last_received, replay_requested_at FROM dead_letters",
    );
    push_where_clause(&mut query, filter);
    query.push(" ORDER BY id DESC LIMIT ").push_bind(limit);
    let rows = query.build().persistent(false).fetch_all(pool).await?;
    rows.iter().map(stored_dead_letter).collect()
}

pub(super) async fn find_dead_letter(
    pool: &SqlitePool,
    dead_letter_id: i64,
) -> Result<Option<StoredDeadLetter>, StoreError> {
    let row = sqlx::query(
        "SELECT id, client_id, topic, payload, size, sha256, reason, detail, \
         occurrences, first_received, last_received, replay_requested_at \
           FROM dead_letters WHERE id = ?",
    )
    .bind(dead_letter_id)
    .fetch_optional(pool)
    .await?;
    row.as_ref().map(stored_dead_letter).transpose()
}

pub(super) async fn request_replay(
    pool: &SqlitePool,
    dead_letter_id: i64,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let result = sqlx::query("UPDATE dead_letters SET replay_requested_at = ?2 WHERE id = ?1")
        .bind(dead_letter_id)
        .bind(now.as_microsecond())
        .execute(pool)
        .await?;
    Ok(result.rows_affected() > 0)
}

pub(super) async fn finish_replay(
    pool: &SqlitePool,
    dead_letter_id: i64,
    occurrences: u64,
) -> Result<bool, StoreError> {
    let result = sqlx::query("DELETE FROM dead_letters WHERE id = ?1 AND occurrences = ?2")
        .bind(dead_letter_id)
        .bind(i64::try_from(occurrences).unwrap_or(i64::MAX))
        .execute(pool)
        .await?;
    Ok(result.rows_affected() > 0)
}

pub(super) async fn purge_dead_letters(
    pool: &SqlitePool,
    filter: &DeadLetterFilter,
) -> Result<u64, StoreError> {
    let mut query = QueryBuilder::new("DELETE FROM dead_letters");
    push_where_clause(&mut query, filter);
    let result = query.build().persistent(false).execute(pool).await?;
    Ok(result.rows_affected())
}

fn push_where_clause(query: &mut QueryBuilder<Sqlite>, filter: &DeadLetterFilter) {
    query.push(" WHERE true");
    if let Some(client) = &filter.client {
        query
            .push(" AND client_id = ")
            .push_bind(client.as_str().to_owned());
    }
    if let Some(reason) = filter.reason {
        query.push(" AND reason = ").push_bind(reason.as_str());
    }
    if let Some(received_before) = filter.received_before {
        query
            .push(" AND last_received < ")
            .push_bind(received_before.as_microsecond());
    }
    if filter.replay_requested {
        query.push(" AND replay_requested_at IS NOT NULL");
    }
}

fn stored_dead_letter(row: &SqliteRow) -> Result<StoredDeadLetter, StoreError> {
    let client_id: String = row.try_get("client_id")?;
    let payload: Vec<u8> = row.try_get("payload")?;
    let read_u64 = |column| -> Result<u64, StoreError> {
        Ok(u64::try_from(row.try_get::<i64, _>(column)?).unwrap_or(0))
    };
    Ok(StoredDeadLetter {
        id: row.try_get("id")?,
        client: ClientId::new(&client_id).ok(),
        topic: row.try_get("topic")?,
        payload: payload.into(),
        payload_size: read_u64("size")?,
        sha256: row.try_get("sha256")?,
        reason: row.try_get("reason")?,
        detail: row.try_get("detail")?,
        occurrences: read_u64("occurrences")?,
        first_received: row::timestamp(row, "first_received")?,
        last_received: row::timestamp(row, "last_received")?,
        replay_requested_at: row::optional_timestamp(row, "replay_requested_at")?,
    })
}
