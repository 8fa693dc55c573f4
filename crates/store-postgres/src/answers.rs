//! The statement that applies answers to tracked messages.

use const_format::concatcp;

use crate::driver::{PgQuery, set_based, timestamptz};
use crate::transaction::column;
use store::MessageAnswer;
use store::sql::MESSAGE_CHANGE_COLUMNS;

store::statements! {
    /// Each message is found by its primary key. A message whose `answer_count` is equal to the number of
    /// answers in the batch had no answer before.
    WRITE_ANSWERS = concatcp!("
        WITH changed AS (
            UPDATE messages AS m SET
                   state = CASE WHEN m.answer_count = 0 THEN a.state ELSE m.state END,
                   reason = CASE WHEN m.answer_count = 0 THEN NULL ELSE m.reason END,
                   answer = CASE WHEN m.answer_count = 0 THEN a.answer ELSE m.answer END,
                   answer_truncated =
                       CASE WHEN m.answer_count = 0 THEN a.truncated ELSE m.answer_truncated END,
                   answered_at = COALESCE(m.answered_at, a.received_at),
                   final_at = CASE WHEN m.answer_count = 0 THEN a.received_at ELSE m.final_at END,
                   answer_count = m.answer_count + a.count,
                   lease_until = NULL, metadata = NULL, payload = NULL
              FROM (SELECT * FROM UNNEST($1::text[], $2::text[], $3::text[], $4::text[],
                        $5::bigint[], $6::timestamptz[], $7::bigint[])
                    AS a (id, client_id, state, answer, truncated, received_at, count)
                    ORDER BY client_id, id) AS a
             WHERE m.id = a.id AND m.client_id = a.client_id AND m.state <> 'cancelled'
               AND NOT EXISTS (SELECT FROM connections AS c WHERE c.client_id = m.client_id
                                  AND c.org_id <> '' AND c.org_id <> m.client_org_id)
            RETURNING m.*, a.count)
        SELECT ", MESSAGE_CHANGE_COLUMNS, " FROM changed WHERE answer_count = count");
}

/// Returns the query that applies answers.
pub(crate) fn write_answers(rows: &[MessageAnswer]) -> PgQuery {
    set_based(WRITE_ANSWERS)
        .bind(column(rows, |it| it.message_id.as_str()))
        .bind(column(rows, |it| it.client_id.as_str()))
        .bind(column(rows, |it| it.state().as_str()))
        .bind(column(rows, |it| it.content.json.as_str()))
        .bind(column(rows, |it| i64::from(it.content.is_truncated)))
        .bind(column(rows, |it| timestamptz(it.received_at)))
        .bind(column(rows, |it| i64::from(it.count)))
}
