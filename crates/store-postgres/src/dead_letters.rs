//! Dead letters: insert, list, replay and purge.

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgPool, Postgres, QueryBuilder, Row as _};
use time::OffsetDateTime;

use super::row;
use domain::{ClientId, Timestamp};
use store::{DeadLetter, DeadLetterFilter, DeadLetterLimits, StoreError, StoredDeadLetter};

/// Inserts dead letters, then deletes the oldest dead letters above the limits. If a message is
/// already stored, its row is updated and `occurrences` is incremented.
pub(super) async fn insert_dead_letters(
    connection: &mut PgConnection,
    dead_letters: &[DeadLetter],
    limits: DeadLetterLimits,
) -> Result<(), StoreError> {
    let text_column = |column: fn(&DeadLetter) -> String| -> Vec<String> {
        dead_letters.iter().map(column).collect()
    };
    let payloads: Vec<&[u8]> = dead_letters.iter().map(|d| &d.payload[..]).collect();
    let sizes: Vec<i64> = dead_letters
        .iter()
        .map(|d| i64::try_from(d.payload_size).unwrap_or(i64::MAX))
        .collect();
    let received_times: Vec<OffsetDateTime> = dead_letters
        .iter()
        .map(|d| row::to_sql(d.received_at))
        .collect();
    let client_ids = text_column(|d| d.client_id_column().to_owned());
    sqlx::query(
        "INSERT INTO dead_letters (client_id, fingerprint, topic, payload, size, sha256, reason,
                detail, first_received, last_received)
         SELECT *, received FROM UNNEST($1::text[], $2::text[], $3::text[], $4::bytea[],
                $5::bigint[], $6::text[], $7::text[], $8::text[], $9::timestamptz[])
             AS t (client_id, fingerprint, topic, payload, size, sha256, reason, detail, received)
         ON CONFLICT (client_id, fingerprint) DO UPDATE SET
                reason = excluded.reason, detail = excluded.detail,
                occurrences = dead_letters.occurrences + 1,
                last_received = excluded.last_received, replay_requested_at = NULL",
    )
    .bind(&client_ids)
    .bind(text_column(DeadLetter::fingerprint))
    .bind(text_column(|d| d.topic.clone()))
    .bind(&payloads)
    .bind(&sizes)
    .bind(text_column(|d| d.sha256.clone()))
    .bind(text_column(|d| d.reason.as_str().to_owned()))
    .bind(text_column(|d| d.detail.clone()))
    .bind(&received_times)
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "DELETE FROM dead_letters WHERE id IN (
             SELECT id FROM (
                 SELECT id, row_number() OVER (
                            PARTITION BY client_id ORDER BY last_received DESC, id DESC) AS age_rank
                   FROM dead_letters WHERE client_id = ANY($1)) AS ranked
              WHERE age_rank > $2)",
    )
    .bind(&client_ids)
    .bind(i64::from(limits.max_dead_letters_per_client))
    .execute(&mut *connection)
    .await?;
    // Keeps only rows whose id is among the last `max_dead_letters` ids, so at most this number of
    // rows remain. A statement that counts the rows would take longer.
    sqlx::query("DELETE FROM dead_letters WHERE id <= (SELECT max(id) FROM dead_letters) - $1")
        .bind(i64::from(limits.max_dead_letters))
        .execute(connection)
        .await?;
    Ok(())
}

pub(super) async fn list_dead_letters(
    pool: &PgPool,
    filter: &DeadLetterFilter,
    limit: u32,
) -> Result<Vec<StoredDeadLetter>, StoreError> {
    let mut query = QueryBuilder::new(
        "SELECT id, client_id, topic, ''::bytea AS payload, size, sha256, reason, detail, \
         occurrences, first_received, last_received, replay_requested_at FROM dead_letters",
    );
    push_where_clause(&mut query, filter);
    query
        .push(" ORDER BY id DESC LIMIT ")
        .push_bind(i64::from(limit));
    let rows = query.build().persistent(false).fetch_all(pool).await?;
    rows.iter().map(stored_dead_letter).collect()
}

pub(super) async fn find_dead_letter(
    pool: &PgPool,
    dead_letter_id: i64,
) -> Result<Option<StoredDeadLetter>, StoreError> {
    let row = sqlx::query(
        "SELECT id, client_id, topic, payload, size, sha256, reason, detail, \
         occurrences, first_received, last_received, replay_requested_at \
           FROM dead_letters WHERE id = $1",
    )
    .bind(dead_letter_id)
    .fetch_optional(pool)
    .await?;
    row.as_ref().map(stored_dead_letter).transpose()
}

pub(super) async fn request_replay(
    pool: &PgPool,
    dead_letter_id: i64,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let result = sqlx::query("UPDATE dead_letters SET replay_requested_at = $2 WHERE id = $1")
        .bind(dead_letter_id)
        .bind(row::to_sql(now))
        .execute(pool)
        .await?;
    Ok(result.rows_affected() > 0)
}

pub(super) async fn finish_replay(
    pool: &PgPool,
    dead_letter_id: i64,
    occurrences: u64,
) -> Result<bool, StoreError> {
    let result = sqlx::query("DELETE FROM dead_letters WHERE id = $1 AND occurrences = $2")
        .bind(dead_letter_id)
        .bind(i64::try_from(occurrences).unwrap_or(i64::MAX))
        .execute(pool)
        .await?;
    Ok(result.rows_affected() > 0)
}

pub(super) async fn purge_dead_letters(
    pool: &PgPool,
    filter: &DeadLetterFilter,
) -> Result<u64, StoreError> {
    let mut query = QueryBuilder::new("DELETE FROM dead_letters");
    push_where_clause(&mut query, filter);
    let result = query.build().persistent(false).execute(pool).await?;
    Ok(result.rows_affected())
}

fn push_where_clause(query: &mut QueryBuilder<Postgres>, filter: &DeadLetterFilter) {
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
            .push_bind(row::to_sql(received_before));
    }
    if filter.replay_requested {
        query.push(" AND replay_requested_at IS NOT NULL");
    }
}

fn stored_dead_letter(row: &PgRow) -> Result<StoredDeadLetter, StoreError> {
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
