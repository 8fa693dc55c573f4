//! The statements that write presence history and events.

use const_format::concatcp;

use crate::driver::{PgQuery, timestamptz};
use crate::transaction::column;
use crate::upsert::bigint;
use store::{HistoryRow, NewEvent};

/// Start of the statement that inserts history rows. `h` has the rows.
pub(crate) const INSERT_HISTORY: &str = "
        INSERT INTO presence_history (client_id, number, at, org_id, status, reason)
        SELECT h.client_id, h.number, h.at, h.org_id, h.status, h.reason";

/// Start of the statement that inserts events. `e` has the rows. The stored dispatchers of the client, before
/// the batch, are the last dispatchers of an offline event, and the previous dispatchers of other events.
pub(crate) const INSERT_EVENTS: &str = "
        INSERT INTO event_outbox (at, type, org_id, account, client_id, data, previous_dispatchers)
        SELECT e.at, e.type, e.org_id, e.account, e.client_id,
               CASE WHEN e.dispatchers_changed AND e.type = 'connection.offline'
                   THEN (SELECT (e.data::jsonb || jsonb_build_object('dispatchers', c.dispatchers))::text
                           FROM connections AS c WHERE c.client_id = e.client_id)
                   ELSE e.data END,
               CASE WHEN e.dispatchers_changed AND e.type <> 'connection.offline'
                   THEN (SELECT c.dispatchers::text
                           FROM connections AS c WHERE c.client_id = e.client_id) END";

store::statements! {
    pub(crate) WRITE_HISTORY = concatcp!(INSERT_HISTORY, "
          FROM UNNEST($1::text[], $2::bigint[], $3::timestamptz[], $4::text[], $5::text[],
               $6::text[]) AS h (client_id, number, at, org_id, status, reason)
        ON CONFLICT (client_id, org_id, number) DO UPDATE SET at = excluded.at,
               status = excluded.status, reason = excluded.reason");

    pub(crate) WRITE_EVENTS = concatcp!(INSERT_EVENTS, "
          FROM UNNEST($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::text[],
               $6::text[], $7::bool[])
            AS e (at, type, org_id, account, client_id, data, dispatchers_changed)");
}

/// Binds six parameters.
pub(crate) fn bind_history(query: PgQuery, rows: &[HistoryRow]) -> PgQuery {
    query
        .bind(column(rows, |h| h.client_id.as_str()))
        .bind(column(rows, |h| bigint(h.number)))
        .bind(column(rows, |h| timestamptz(h.at)))
        .bind(column(rows, HistoryRow::org_id))
        .bind(column(rows, |h| h.transition.status()))
        .bind(column(rows, |h| h.transition.reason()))
}

/// Binds seven parameters.
pub(crate) fn bind_events(query: PgQuery, rows: &[NewEvent]) -> PgQuery {
    query
        .bind(column(rows, |e| timestamptz(e.at)))
        .bind(column(rows, |e| e.event_type))
        .bind(column(rows, |e| e.tenant.org_id.as_str()))
        .bind(column(rows, |e| e.tenant.account.as_str()))
        .bind(column(rows, |e| e.client_id.as_str()))
        .bind(column(rows, |e| e.data.to_string()))
        .bind(column(rows, |e| e.dispatchers_changed))
}
