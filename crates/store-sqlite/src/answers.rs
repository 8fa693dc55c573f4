//! The statement that applies answers to tracked messages. Its parameter is a JSON array of arrays.

use const_format::concatcp;
use serde_json::json;

use store::MessageAnswer;
use store::sql::MESSAGE_CHANGE_COLUMNS;

store::statements! {
    /// Returns each changed message with the new number of its answers.
    pub(crate) WRITE_ANSWERS = concatcp!(
        "WITH a AS (
             SELECT value ->> 0 AS message_id, value ->> 1 AS answer_client_id,
                    value ->> 2 AS answer_state, value ->> 3 AS content, value ->> 4 AS truncated,
                    value ->> 5 AS received_at, value ->> 6 AS count
               FROM json_each($1))
         UPDATE messages AS m SET
                state = CASE WHEN m.answer_count = 0 THEN a.answer_state ELSE m.state END,
                reason = CASE WHEN m.answer_count = 0 THEN NULL ELSE m.reason END,
                answer = CASE WHEN m.answer_count = 0 THEN a.content ELSE m.answer END,
                answer_truncated =
                    CASE WHEN m.answer_count = 0 THEN a.truncated ELSE m.answer_truncated END,
                answered_at = coalesce(m.answered_at, a.received_at),
                final_at = CASE WHEN m.answer_count = 0 THEN a.received_at ELSE m.final_at END,
                answer_count = m.answer_count + a.count,
                lease_until = NULL, metadata = NULL, payload = NULL
           FROM a
          WHERE m.id = a.message_id AND m.client_id = a.answer_client_id AND m.state <> 'cancelled'
            AND NOT EXISTS (SELECT 1 FROM connections AS c WHERE c.client_id = m.client_id
                               AND c.org_id <> '' AND c.org_id <> m.client_org_id)
         RETURNING ",
        MESSAGE_CHANGE_COLUMNS,
        ", answer_count"
    );
}

pub(crate) fn answers_parameter(rows: &[MessageAnswer]) -> String {
    let row = |row: &MessageAnswer| {
        json!([
            row.message_id.as_str(),
            row.client_id.as_str(),
            row.state().as_str(),
            row.content.json,
            i64::from(row.content.is_truncated),
            row.received_at.as_microsecond(),
            row.count,
        ])
    };
    json!(rows.iter().map(row).collect::<Vec<_>>()).to_string()
}
