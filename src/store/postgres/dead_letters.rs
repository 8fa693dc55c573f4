//! Messages that can never be processed.

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgPool, Postgres, QueryBuilder, Row as _};
use time::OffsetDateTime;

use super::row;
use crate::domain::{ClientId, Timestamp};
use crate::store::{DeadLetter, DeadLetterFilter, DeadLetterLimits, StoreError, StoredDeadLetter};

pub(super) async fn keep(
    connection: &mut PgConnection,
    letters: &[DeadLetter],
    limits: DeadLetterLimits,
) -> Result<(), StoreError> {
    let texts = |of: fn(&DeadLetter) -> String| letters.iter().map(of).collect::<Vec<String>>();
    let payloads: Vec<&[u8]> = letters.iter().map(|letter| &letter.payload[..]).collect();
    let sizes: Vec<i64> = letters
        .iter()
        .map(|letter| i64::try_from(letter.size).unwrap_or(i64::MAX))
        .collect();
    let received: Vec<OffsetDateTime> = letters
        .iter()
        .map(|letter| row::to_sql(letter.received))
        .collect();
    let clients = texts(|letter| letter.client_name().to_owned());
    sqlx::query(
        "INSERT INTO dead_letters (client_id, fingerprint, topic, payload, size, sha256, reason,
                detail, first_received, last_received)
         SELECT *, received FROM UNNEST($1::text[], $2::text[], $3::text[], $4::bytea[],
                $5::bigint[], $6::text[], $7::text[], $8::text[], $9::timestamptz[])
             AS t (client_id, fingerprint, topic, payload, size, sha256, reason, detail, received)
         ON CONFLICT (client_id, fingerprint) DO UPDATE SET
                reason = excluded.reason, detail = excluded.detail,
                times = dead_letters.times + 1, last_received = excluded.last_received,
                replay_requested_at = NULL",
    )
    .bind(&clients)
    .bind(texts(DeadLetter::fingerprint))
    .bind(texts(|letter| letter.topic.clone()))
    .bind(&payloads)
    .bind(&sizes)
    .bind(texts(|letter| letter.sha256.clone()))
    .bind(texts(|letter| letter.reason.clone()))
    .bind(texts(|letter| letter.detail.clone()))
    .bind(&received)
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "DELETE FROM dead_letters WHERE id IN (
             SELECT id FROM (
                 SELECT id, row_number() OVER (
                            PARTITION BY client_id ORDER BY last_received DESC, id DESC) AS place
                   FROM dead_letters WHERE client_id = ANY($1)) AS ranked
              WHERE place > $2)",
    )
    .bind(&clients)
    .bind(i64::from(limits.max_per_client))
    .execute(&mut *connection)
    .await?;
    // By the numbers, which only grow: counting would take longer the more there are.
    sqlx::query("DELETE FROM dead_letters WHERE id <= (SELECT max(id) FROM dead_letters) - $1")
        .bind(i64::from(limits.max_total))
        .execute(connection)
        .await?;
    Ok(())
}

pub(super) async fn list(
    pool: &PgPool,
    filter: &DeadLetterFilter,
    limit: u32,
) -> Result<Vec<StoredDeadLetter>, StoreError> {
    let mut query = QueryBuilder::new(
        "SELECT id, client_id, topic, ''::bytea AS payload, size, sha256, reason, detail, times, \
         first_received, last_received, replay_requested_at FROM dead_letters",
    );
    narrow(&mut query, filter);
    query
        .push(" ORDER BY id DESC LIMIT ")
        .push_bind(i64::from(limit));
    let rows = query.build().persistent(false).fetch_all(pool).await?;
    rows.iter().map(kept).collect()
}

pub(super) async fn find(pool: &PgPool, id: i64) -> Result<Option<StoredDeadLetter>, StoreError> {
    let row = sqlx::query(
        "SELECT id, client_id, topic, payload, size, sha256, reason, detail, times, \
         first_received, last_received, replay_requested_at FROM dead_letters WHERE id = $1",
    )
    .bind(id)
    .fetch_optional(pool)
    .await?;
    row.as_ref().map(kept).transpose()
}

pub(super) async fn request_replay(
    pool: &PgPool,
    id: i64,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let done = sqlx::query("UPDATE dead_letters SET replay_requested_at = $2 WHERE id = $1")
        .bind(id)
        .bind(row::to_sql(now))
        .execute(pool)
        .await?;
    Ok(done.rows_affected() > 0)
}

pub(super) async fn finish_replay(pool: &PgPool, id: i64, times: u64) -> Result<bool, StoreError> {
    let done = sqlx::query("DELETE FROM dead_letters WHERE id = $1 AND times = $2")
        .bind(id)
        .bind(i64::try_from(times).unwrap_or(i64::MAX))
        .execute(pool)
        .await?;
    Ok(done.rows_affected() > 0)
}

pub(super) async fn purge(pool: &PgPool, filter: &DeadLetterFilter) -> Result<u64, StoreError> {
    let mut query = QueryBuilder::new("DELETE FROM dead_letters");
    narrow(&mut query, filter);
    let done = query.build().persistent(false).execute(pool).await?;
    Ok(done.rows_affected())
}

fn narrow(query: &mut QueryBuilder<Postgres>, filter: &DeadLetterFilter) {
    query.push(" WHERE true");
    if let Some(client) = &filter.client {
        query
            .push(" AND client_id = ")
            .push_bind(client.as_str().to_owned());
    }
    if let Some(reason) = &filter.reason {
        query.push(" AND reason = ").push_bind(reason.clone());
    }
    if let Some(before) = filter.before {
        query
            .push(" AND last_received < ")
            .push_bind(row::to_sql(before));
    }
    if filter.replay_asked {
        query.push(" AND replay_requested_at IS NOT NULL");
    }
}

fn kept(row: &PgRow) -> Result<StoredDeadLetter, StoreError> {
    let client: String = row.try_get("client_id")?;
    let payload: Vec<u8> = row.try_get("payload")?;
    let count = |column| -> Result<u64, StoreError> {
        Ok(u64::try_from(row.try_get::<i64, _>(column)?).unwrap_or(0))
    };
    Ok(StoredDeadLetter {
        id: row.try_get("id")?,
        letter: DeadLetter {
            client: ClientId::new(&client).ok(),
            topic: row.try_get("topic")?,
            payload: payload.into(),
            size: count("size")?,
            sha256: row.try_get("sha256")?,
            reason: row.try_get("reason")?,
            detail: row.try_get("detail")?,
            received: row::moment(row, "last_received")?,
        },
        times: count("times")?,
        first_received: row::moment(row, "first_received")?,
        replay_asked: row::moment_or_none(row, "replay_requested_at")?,
    })
}
