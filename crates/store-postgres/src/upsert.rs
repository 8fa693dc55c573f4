//! The statements that write the rows of online messages.
//!
//! A batch that contains only online messages of clients with a tenant, which is the usual batch, is
//! written by [`RECORD_UPSERTS`] in one round trip. All other batches use a transaction with several
//! statements. Both write the same rows, because both are built from the same text.
//!
//! A batch is written only if each row still has the version that the recorder has read, see
//! [`ConnectionUpsert::replaced`]. So the recorder may leave out what did not change, such as the
//! search row, and derive the history and the events from the rows that it has read.

use const_format::concatcp;
use time::OffsetDateTime;

use crate::driver::{PgQuery, set_based, timestamptz};
use crate::history::{INSERT_EVENTS, INSERT_HISTORY, bind_events, bind_history};
use crate::search_entry::SearchColumns;
use crate::transaction::{bind_stamps, column};
use domain::{MessageId, Timestamp};
use store::sql::{
    HEARTBEAT_STAMP_COLUMNS, KEEP_LATER_HEARTBEAT, ONLINE_MESSAGE_COLUMNS, PRESENCE_COLUMNS,
    PRESENCE_STAMP_COLUMNS, REPLACE_ONLINE_MESSAGE, REPLACE_PRESENCE_COLUMNS,
    REPLACE_PRESENCE_STAMP, TenantColumns,
};
use store::{ConnectionUpsert, HistoryRow, NewEvent, PartitionLease, PresenceBatch, ReplacedRow};

/// Columns of `connections` that an online message sets, in the order of the parameters `$1` to `$28`.
/// `reported_to_inventory_at`, which is also a parameter, is not a column.
const ROW_COLUMNS: &str = concatcp!(
    "client_id, org_id, account, tags, ",
    ONLINE_MESSAGE_COLUMNS,
    ", tenant_lookup_timestamp, online_received_at, last_heartbeat_at, queue_topic,
               queue_partition, queue_offset, inventory_eligible"
);

/// Selects the rows in the parameters `$1` to `$38`. `$29` is the time of the batch, and `$38` has the search
/// hashes.
///
/// `$30` is the replaced version of each row, see [`created_at`]. `created_at` is set to it, because an update
/// does not change this column, and [`UPDATE_ROWS`] needs the version.
pub(crate) const INSERT_ROWS: &str = concatcp!(
    "
        INSERT INTO connections (",
    ROW_COLUMNS,
    ", ",
    PRESENCE_STAMP_COLUMNS,
    ", ",
    HEARTBEAT_STAMP_COLUMNS,
    ", ",
    PRESENCE_COLUMNS,
    ", stale_timestamp, created_at, updated_at, search_hash)
        SELECT ",
    ROW_COLUMNS,
    ", ",
    PRESENCE_STAMP_COLUMNS,
    ", ",
    HEARTBEAT_STAMP_COLUMNS,
    ", ",
    PRESENCE_COLUMNS,
    ",
               COALESCE(reported_to_inventory_at, 'epoch'), replaced_version, $29, search_hash
          FROM UNNEST($1::text[], $2::text[], $3::text[], $4::text[]::jsonb[], $5::text[],
               $6::text[], $7::text[], $8::text[]::jsonb[], $9::text[]::jsonb[],
               $10::text[]::jsonb[], $11::text[], $12::text[], $13::text[], $14::timestamptz[],
               $15::timestamptz[], $16::timestamptz[], $17::timestamptz[], $18::bigint[],
               $19::int[], $20::bigint[], $21::bool[], $22::timestamptz[], $23::bigint[],
               $24::bigint[], $25::bigint[], $26::bigint[], $27::bigint[], $28::bigint[],
               $30::timestamptz[], $31::timestamptz[], $32::timestamptz[], $33::bigint[],
               $34::bigint[], $35::timestamptz[], $36::bigint[], $37::text[], $38::bigint[])
            AS t (",
    ROW_COLUMNS,
    ", reported_to_inventory_at, ",
    PRESENCE_STAMP_COLUMNS,
    ", ",
    HEARTBEAT_STAMP_COLUMNS,
    ", replaced_version, ",
    PRESENCE_COLUMNS,
    ", search_hash)"
);

/// Updates the rows that exist. Skips a row that has another version than the replaced one, see
/// [`created_at`].
///
/// `is_lost` is true for a row that was inserted, although it should replace a version: the row was
/// deleted after the recorder had read it. `xmax` is 0 for inserted rows.
pub(crate) const UPDATE_ROWS: &str = concatcp!(
    "
        ON CONFLICT (client_id) DO UPDATE SET ",
    REPLACE_ONLINE_MESSAGE,
    ",
               org_id = excluded.org_id, account = excluded.account,
               tenant_lookup_timestamp = excluded.tenant_lookup_timestamp,
               tenant_lookup_failure_count = CASE WHEN excluded.org_id <> '' THEN 0
                   ELSE COALESCE(connections.tenant_lookup_failure_count, 0) END,
               ",
    KEEP_LATER_HEARTBEAT,
    ", ",
    REPLACE_PRESENCE_STAMP,
    ",
               offline_received_at = NULL,
               queue_topic = excluded.queue_topic,
               queue_partition = excluded.queue_partition,
               queue_offset = excluded.queue_offset,
               inventory_eligible = excluded.inventory_eligible,
               stale_timestamp = CASE WHEN excluded.org_id <> '' THEN excluded.stale_timestamp
                   ELSE connections.stale_timestamp END,
               online_received_at = excluded.online_received_at, updated_at = excluded.updated_at,
               search_hash = excluded.search_hash, ",
    REPLACE_PRESENCE_COLUMNS,
    "
         WHERE excluded.created_at IN (connections.updated_at,
                   excluded.updated_at + interval '1 microsecond')
        RETURNING xmax = 0 AND created_at NOT IN (updated_at,
                   updated_at + interval '1 microsecond') AS is_lost"
);

/// Expression that cancels the statement if a row has another version than the replaced one.
const REJECT_OUTDATED_ROWS: &str = "(
            SELECT CASE WHEN count(*) < cardinality($1::text[]) OR bool_or(is_lost)
                   THEN reject_outdated_batch() ELSE 0 END FROM upserted)";

/// Writes the rows of the search index in the parameters `$39` to `$47` that differ. The count of the
/// upserted rows makes PostgreSQL lock the connections first, as the triggers of other writers do.
const WRITE_SEARCH_ROWS: &str = "
        INSERT INTO connection_search (client_id, org_id, content_hash, fqdn, insights_id,
               subscription_manager_id, term_hashes)
        SELECT client_id, org_id, content_hash, fqdn, insights_id, subscription_manager_id,
               ($47::bigint[])[first_term:last_term]
          FROM UNNEST($39::text[], $40::text[], $41::bigint[], $42::text[], $43::text[],
               $44::text[], $45::int[], $46::int[])
            AS t (client_id, org_id, content_hash, fqdn, insights_id, subscription_manager_id,
               first_term, last_term),
               (SELECT count(*) AS count FROM upserted) AS upserted
         WHERE upserted.count > 0 AND content_hash IS DISTINCT FROM (
               SELECT s.content_hash FROM connection_search AS s WHERE s.client_id = t.client_id)
        ON CONFLICT (client_id) DO UPDATE SET org_id = excluded.org_id,
               content_hash = excluded.content_hash, fqdn = excluded.fqdn,
               insights_id = excluded.insights_id,
               subscription_manager_id = excluded.subscription_manager_id,
               term_hashes = excluded.term_hashes";

/// Writes the history rows in the parameters `$48` to `$53` and the events in `$54` to `$60`. The previous
/// dispatchers are read from the snapshot of the statement, which still has the old row.
///
/// The ids of the events are drawn after the rows of the clients are locked, so the events of a client have
/// ascending ids.
const WRITE_HISTORY_AND_EVENTS: &str = concatcp!(
    "history AS (",
    INSERT_HISTORY,
    "
          FROM UNNEST($48::text[], $49::bigint[], $50::timestamptz[], $51::text[], $52::text[],
               $53::text[]) AS h (client_id, number, at, org_id, status, reason)
         WHERE (SELECT count(*) FROM upserted) > 0
        ON CONFLICT (client_id, org_id, number) DO UPDATE SET at = excluded.at,
               status = excluded.status, reason = excluded.reason RETURNING 1),
        outbox AS (",
    INSERT_EVENTS,
    "
          FROM UNNEST($54::timestamptz[], $55::text[], $56::text[], $57::text[], $58::text[],
               $59::text[], $60::bool[])
            AS e (at, type, org_id, account, client_id, data, dispatchers_changed)
         WHERE (SELECT count(*) FROM upserted) > 0 RETURNING 1)"
);

store::statements! {
    pub(crate) UPSERT_CONNECTIONS = concatcp!("
        WITH upserted AS (", INSERT_ROWS, UPDATE_ROWS, "),
        indexed AS (", WRITE_SEARCH_ROWS, " RETURNING 1),
        ", WRITE_HISTORY_AND_EVENTS, "
        SELECT ", REJECT_OUTDATED_ROWS, " AS outdated_rows");

    /// Does the work of a whole transaction: checks the leases, writes the connections and the search
    /// index, and deletes the rows of the clients in `disconnected_clients`. Writes nothing, and
    /// returns 0, if a lease is lost.
    ///
    /// `FOR SHARE` waits for a process that is acquiring one of the partitions, and then reads the new
    /// epoch. The counts in the conditions make PostgreSQL run the parts in this order.
    ///
    /// All parts have the same snapshot. If a client is marked as disconnected while the statement waits
    /// for its row, the row no longer has the replaced version, and the statement fails. Only a client
    /// without a row can connect and disconnect meanwhile: its new row in `disconnected_clients` then
    /// remains. The row has no effect while the client is connected, and its next message or its next
    /// disconnect replaces it.
    RECORD_UPSERTS = concatcp!("
        WITH held AS MATERIALIZED (
            SELECT queue, partition, epoch FROM partition_epoch
             WHERE (queue, partition) IN (SELECT * FROM UNNEST($61::text[], $62::int[]))
             ORDER BY queue, partition FOR SHARE),
        fence AS MATERIALIZED (
            SELECT count(*) = cardinality($61::text[]) AS is_held
              FROM held JOIN UNNEST($61::text[], $62::int[], $63::bigint[])
                AS lease (queue, partition, epoch) USING (queue, partition, epoch)),
        upserted AS (", INSERT_ROWS, ", fence WHERE fence.is_held", UPDATE_ROWS, "),
        indexed AS (", WRITE_SEARCH_ROWS, " RETURNING 1),
        ", WRITE_HISTORY_AND_EVENTS, ",
        deleted AS (
            DELETE FROM disconnected_clients
             WHERE client_id = ANY($1) AND (SELECT count(*) FROM upserted) > 0
               AND (SELECT count(*) FROM indexed) >= 0)
        SELECT CASE WHEN is_held THEN 1 + ", REJECT_OUTDATED_ROWS, " ELSE 0 END AS is_held FROM fence");
}

/// Returns whether [`RECORD_UPSERTS`] can write the batch: it contains only online messages of clients
/// with a tenant.
pub(crate) fn is_single_statement(batch: &PresenceBatch) -> bool {
    let PresenceBatch {
        upserts,
        heartbeats,
        connection_ends,
        dead_letters,
        dead_letter_limits: _,
        delivered_reports,
        last_seen,
        history: _,
        events: _,
        answers,
    } = batch;
    let has_tenant = |row: &ConnectionUpsert| !TenantColumns::from(&row.tenant).org_id.is_empty();
    !upserts.is_empty()
        && heartbeats.is_empty()
        && connection_ends.is_empty()
        && dead_letters.is_empty()
        && delivered_reports.is_empty()
        && last_seen.is_empty()
        && answers.is_empty()
        && upserts.iter().all(has_tenant)
}

/// Returns the query that writes a batch for which [`is_single_statement`] is true.
pub(crate) fn record_upserts(
    batch: &PresenceBatch,
    leases: &[PartitionLease],
    now: Timestamp,
    writes_events: bool,
) -> PgQuery {
    let (history, events) = (&batch.history, &batch.events);
    let events = if writes_events { &events[..] } else { &[] };
    bind_upserts(
        set_based(RECORD_UPSERTS),
        &batch.upserts,
        history,
        events,
        now,
    )
    .bind(column(leases, |lease| lease.queue.as_str()))
    .bind(column(leases, |lease| lease.partition))
    .bind(column(leases, |lease| lease.epoch))
}

/// Binds the parameters of [`UPSERT_CONNECTIONS`].
pub(crate) fn bind_upserts(
    query: PgQuery,
    rows: &[ConnectionUpsert],
    history: &[HistoryRow],
    events: &[NewEvent],
    now: Timestamp,
) -> PgQuery {
    let query = bind_search_rows(bind_rows(query, rows, now), rows);
    bind_events(bind_history(query, history), events)
}

/// Returns the value of `created_at` for a row. It is the time of the batch for a new row, and the replaced
/// version for an update. If any row may be replaced, it is one microsecond after the time of the batch, which
/// no version can be.
fn created_at(replaced: ReplacedRow, now: Timestamp) -> OffsetDateTime {
    match replaced {
        ReplacedRow::Absent => timestamptz(now),
        ReplacedRow::Version(version) => timestamptz(version.updated_at),
        ReplacedRow::Any => timestamptz(now) + time::Duration::microseconds(1),
    }
}

/// Binds the parameters `$1` to `$37`.
pub(crate) fn bind_rows(query: PgQuery, rows: &[ConnectionUpsert], now: Timestamp) -> PgQuery {
    let tenants = column(rows, |u| TenantColumns::from(&u.tenant));
    let query = query
        .bind(column(rows, |u| u.client_id.as_str()))
        .bind(column(&tenants, |t| t.org_id))
        .bind(column(&tenants, |t| t.account))
        .bind(column(rows, |u| u.info.tags.to_string()))
        .bind(column(rows, |u| u.dialect.as_str()))
        .bind(column(rows, |u| u.kind.as_str()))
        .bind(column(rows, |u| u.topic_prefix.as_str()))
        .bind(column(rows, |u| u.info.canonical_facts.to_string()))
        .bind(column(rows, |u| u.info.catalog_service_facts.to_string()))
        .bind(column(rows, |u| u.info.dispatchers.to_string()))
        .bind(column(rows, |u| u.info.client_name.as_str()))
        .bind(column(rows, |u| u.info.client_version.as_str()))
        .bind(column(rows, |u| {
            u.message_id.as_ref().map(MessageId::as_str)
        }))
        .bind(column(rows, |u| timestamptz(u.message_sent_at)))
        .bind(column(&tenants, |t| t.lookup_timestamp.map(timestamptz)))
        .bind(column(rows, |u| timestamptz(u.received_at.time)))
        .bind(column(rows, |u| {
            u.last_heartbeat_at
                .map(|received_at| timestamptz(received_at.time))
        }))
        .bind(column(rows, |u| u.received_at.topic()))
        .bind(column(rows, |u| u.received_at.partition()))
        .bind(column(rows, |u| u.received_at.offset()))
        .bind(column(rows, |u| u.inventory_eligible))
        .bind(column(rows, |u| {
            u.reported_to_inventory_at.map(timestamptz)
        }));
    let query = bind_stamps(query, rows, |u| Some(u.received_at));
    bind_stamps(query, rows, |u| u.last_heartbeat_at)
        .bind(timestamptz(now))
        .bind(column(rows, |u| created_at(u.replaced, now)))
        .bind(column(rows, |u| {
            u.presence.connected_since.map(timestamptz)
        }))
        .bind(column(rows, |u| u.presence.last_seen.map(timestamptz)))
        .bind(column(rows, |u| bigint(u.presence.reconnects)))
        .bind(column(rows, |u| bigint(u.presence.hourly_reconnects)))
        .bind(column(rows, |u| {
            u.presence.hourly_reconnects_since.map(timestamptz)
        }))
        .bind(column(rows, |u| bigint(u.presence.transition_count)))
        .bind(column(rows, |u| {
            let hashes = u.presence.content_hashes;
            hashes.map(|hashes| hashes.to_string())
        }))
}

pub(crate) fn bigint(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Binds the parameters `$38` to `$47`.
fn bind_search_rows(query: PgQuery, rows: &[ConnectionUpsert]) -> PgQuery {
    let mut search = SearchColumns::default();
    let mut row_hashes = Vec::with_capacity(rows.len());
    for upsert in rows {
        let version = match upsert.replaced {
            ReplacedRow::Version(version) => Some(version),
            ReplacedRow::Absent | ReplacedRow::Any => None,
        };
        let stored_hash = version.and_then(|version| version.search_hash);
        let org_id = TenantColumns::from(&upsert.tenant).org_id;
        let hash = search.add(upsert.client_id.as_str(), org_id, &upsert.info, stored_hash);
        // At the same time, retention can delete the search row of a client that reconnects, because its
        // snapshot does not have the connection. The statement then skips the search row, because its own
        // snapshot still has it. Without a stored hash, the next online message writes the search row.
        row_hashes.push(version.map(|_| hash));
    }
    query
        .bind(row_hashes)
        .bind(search.client_ids)
        .bind(search.org_ids)
        .bind(search.content_hashes)
        .bind(search.fqdns)
        .bind(search.insights_ids)
        .bind(search.subscription_manager_ids)
        .bind(search.first_terms)
        .bind(search.last_terms)
        .bind(search.term_hashes)
}
