//! INSERT statements of several rows.
//!
//! There are statements for a few numbers of rows, and a batch is written with several statements. So all
//! statements stay prepared: SQLite needs more time to prepare a statement with thousands of parameters
//! than to run it.

use std::sync::LazyLock;

use const_format::concatcp;

use crate::driver::SqliteQuery;
use crate::search_signature::{
    HAS_SAME_SIGNATURE, REPLACE_SIGNATURE, SIGNATURE_COLUMN_LIST, signature_of_client,
};
use crate::transaction::stamp_columns;
use domain::{MessageId, Timestamp};
use store::sql::{
    HEARTBEAT_STAMP_COLUMNS, KEEP_LATER_HEARTBEAT, ONLINE_MESSAGE_COLUMNS, PRESENCE_COLUMNS,
    PRESENCE_STAMP_COLUMNS, Query, REPLACE_ONLINE_MESSAGE, REPLACE_PRESENCE_COLUMNS,
    REPLACE_PRESENCE_STAMP, TenantColumns,
};
use store::{ConnectionUpsert, DeadLetter};

/// Numbers of rows of the statements, the largest first. SQLite accepts 32,766 parameters in a
/// statement, and a connection has 39 parameters.
const ROW_COUNTS: [usize; 4] = [64, 16, 4, 1];

/// Columns of an inserted connection, in the order of the parameters.
const CONNECTION_VALUES: &str = concatcp!(
    "client_id, org_id, account, tags, ",
    ONLINE_MESSAGE_COLUMNS,
    ", tenant_lookup_timestamp, online_received_at, last_heartbeat_at, queue_topic, \
     queue_partition, queue_offset, inventory_eligible, stale_timestamp, created_at, updated_at, ",
    PRESENCE_STAMP_COLUMNS,
    ", ",
    HEARTBEAT_STAMP_COLUMNS,
    ", ",
    PRESENCE_COLUMNS,
    ", ",
    SIGNATURE_COLUMN_LIST
);

/// Updates all columns, except for [`REPLACE_INDEXED`].
const UPDATE_CONNECTION: &str = concatcp!(
    "ON CONFLICT (client_id) DO UPDATE SET ",
    REPLACE_ONLINE_MESSAGE,
    ", account = excluded.account, \
     tenant_lookup_timestamp = excluded.tenant_lookup_timestamp, \
     tenant_lookup_failure_count = CASE WHEN excluded.org_id <> '' THEN 0 \
     ELSE connections.tenant_lookup_failure_count END, ",
    KEEP_LATER_HEARTBEAT,
    ", ",
    REPLACE_PRESENCE_STAMP,
    ", offline_received_at = NULL, \
     queue_topic = excluded.queue_topic, \
     queue_partition = excluded.queue_partition, queue_offset = excluded.queue_offset, \
     inventory_eligible = excluded.inventory_eligible, \
     stale_timestamp = CASE WHEN excluded.org_id <> '' THEN excluded.stale_timestamp \
     ELSE connections.stale_timestamp END, \
     online_received_at = excluded.online_received_at, updated_at = excluded.updated_at, ",
    REPLACE_PRESENCE_COLUMNS
);

/// Updates the columns of the index `connections_search`.
const REPLACE_INDEXED: &str = concatcp!("org_id = excluded.org_id, ", REPLACE_SIGNATURE);

/// Condition that an upsert changes no column of the index `connections_search`.
const IS_SAME_IN_INDEX: &str = concatcp!(
    "(connections.org_id = excluded.org_id AND ",
    HAS_SAME_SIGNATURE,
    ")"
);

/// The rows that a statement of [`insert_connections`] updates. It inserts all new rows.
///
/// SQLite writes an index entry again if a statement sets a column of the index, even to the same value. That costs
/// more than all other work for a signature, and a client usually reports the same content again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Updates {
    /// All rows.
    All,
    /// Rows whose entry in the index `connections_search` does not change.
    SameInIndex,
    /// Rows whose entry changes. These are the rows that a previous statement for
    /// [`Updates::SameInIndex`] has neither inserted nor updated.
    ChangedInIndex,
}

/// Columns of an inserted dead letter, in the order of the parameters.
const DEAD_LETTER_VALUES: &str = "client_id, fingerprint, topic, payload, size, sha256, \
     reason, detail, first_received, last_received";

const UPDATE_DEAD_LETTER: &str = "ON CONFLICT (client_id, fingerprint) DO UPDATE SET \
     reason = excluded.reason, detail = excluded.detail, \
     occurrences = dead_letters.occurrences + 1, \
     last_received = excluded.last_received, replay_requested_at = NULL";

/// The texts of the statements for [`ROW_COUNTS`].
type Texts = [String; ROW_COUNTS.len()];

/// The texts for each of [`Updates`].
static CONNECTION_TEXTS: LazyLock<[Texts; 3]> = LazyLock::new(|| {
    [
        concatcp!(UPDATE_CONNECTION, ", ", REPLACE_INDEXED),
        concatcp!(UPDATE_CONNECTION, " WHERE ", IS_SAME_IN_INDEX),
        concatcp!(
            UPDATE_CONNECTION,
            ", ",
            REPLACE_INDEXED,
            " WHERE NOT ",
            IS_SAME_IN_INDEX
        ),
    ]
    .map(|update| ROW_COUNTS.map(|rows| insert_sql("connections", CONNECTION_VALUES, rows, update)))
});

static DEAD_LETTER_TEXTS: LazyLock<Texts> = LazyLock::new(|| {
    let (columns, update) = (DEAD_LETTER_VALUES, UPDATE_DEAD_LETTER);
    ROW_COUNTS.map(|rows| insert_sql("dead_letters", columns, rows, update))
});

/// Splits rows into chunks whose lengths are [`ROW_COUNTS`].
pub(crate) fn chunks<T>(rows: &[T]) -> impl Iterator<Item = &[T]> {
    let mut rest = rows;
    std::iter::from_fn(move || {
        let len = ROW_COUNTS.into_iter().find(|len| *len <= rest.len())?;
        let (chunk, after) = rest.split_at(len);
        rest = after;
        Some(chunk)
    })
}

/// Returns the statement for a chunk of [`chunks`].
pub(crate) fn insert_connections(rows: usize, updates: Updates) -> Query<'static> {
    let [all, same, changed] = &*CONNECTION_TEXTS;
    let texts = match updates {
        Updates::All => all,
        Updates::SameInIndex => same,
        Updates::ChangedInIndex => changed,
    };
    Query::dynamic(text_for(texts, rows))
}

/// Returns the statement for a chunk of [`chunks`].
pub(crate) fn insert_dead_letters(rows: usize) -> Query<'static> {
    Query::dynamic(text_for(&DEAD_LETTER_TEXTS, rows))
}

fn text_for(texts: &'static Texts, rows: usize) -> &'static str {
    let index = ROW_COUNTS.iter().position(|row_count| *row_count == rows);
    index.map_or("", |index| &texts[index])
}

/// Returns the text of an INSERT of several rows. The parameters have no numbers, because SQLite
/// needs more time for the names of thousands of numbered parameters.
fn insert_sql(table: &str, columns: &str, rows: usize, on_conflict: &str) -> String {
    let row = format!("({})", vec!["?"; columns.split(',').count()].join(", "));
    let values = vec![row; rows].join(", ");
    format!("INSERT INTO {table} ({columns}) VALUES {values} {on_conflict}")
}

pub(crate) fn bind_connection(
    query: SqliteQuery,
    upsert: &ConnectionUpsert,
    now: Timestamp,
) -> SqliteQuery {
    let tenant = TenantColumns::from(&upsert.tenant);
    let info = &upsert.info;
    let micros = Timestamp::as_microsecond;
    let presence_stamp = stamp_columns(Some(upsert.received_at));
    let heartbeat_stamp = stamp_columns(upsert.last_heartbeat_at);
    let query = query
        .bind(upsert.client_id.as_str())
        .bind(tenant.org_id)
        .bind(tenant.account)
        .bind(info.tags.to_string())
        .bind(upsert.dialect.as_str())
        .bind(upsert.kind.as_str())
        .bind(&upsert.topic_prefix)
        .bind(info.canonical_facts.to_string())
        .bind(info.catalog_service_facts.to_string())
        .bind(info.dispatchers.to_string())
        .bind(&info.client_name)
        .bind(&info.client_version)
        .bind(upsert.message_id.as_ref().map(MessageId::as_str))
        .bind(micros(upsert.message_sent_at))
        .bind(tenant.lookup_timestamp.map(micros))
        .bind(micros(upsert.received_at.time))
        .bind(
            upsert
                .last_heartbeat_at
                .map(|received_at| micros(received_at.time)),
        )
        .bind(upsert.received_at.topic())
        .bind(upsert.received_at.partition())
        .bind(upsert.received_at.offset())
        .bind(upsert.inventory_eligible)
        .bind(upsert.reported_to_inventory_at.map_or(0, micros))
        .bind(micros(now))
        .bind(micros(now));
    let stamps = presence_stamp.into_iter().chain(heartbeat_stamp);
    let query = stamps.fold(query, SqliteQuery::bind);
    let presence = &upsert.presence;
    let query = query
        .bind(presence.connected_since.map(micros))
        .bind(presence.last_seen.map(micros))
        .bind(integer(presence.reconnects))
        .bind(integer(presence.hourly_reconnects))
        .bind(presence.hourly_reconnects_since.map(micros))
        .bind(integer(presence.transition_count))
        .bind(presence.content_hashes.map(|hashes| hashes.to_string()));
    let signature = signature_of_client(info).into_iter();
    signature.fold(query, SqliteQuery::bind)
}

fn integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(crate) fn bind_dead_letter(query: SqliteQuery, dead_letter: &DeadLetter) -> SqliteQuery {
    query
        .bind(dead_letter.client_id_column())
        .bind(dead_letter.fingerprint())
        .bind(&dead_letter.topic)
        .bind(&dead_letter.payload[..])
        .bind(i64::try_from(dead_letter.payload_size).unwrap_or(i64::MAX))
        .bind(&dead_letter.sha256)
        .bind(dead_letter.reason.as_str())
        .bind(&dead_letter.detail)
        .bind(dead_letter.received_at.as_microsecond())
        .bind(dead_letter.received_at.as_microsecond())
}

/// Returns the name and the text of the statements of this module.
pub(crate) fn example_inserts() -> Vec<(&'static str, String)> {
    let named = |name, texts: &Texts| texts.clone().map(|text| (name, text));
    let connections = CONNECTION_TEXTS.iter();
    connections
        .flat_map(|texts| named("insert_connections", texts))
        .chain(named("insert_dead_letters", &DEAD_LETTER_TEXTS))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_contain_all_rows_in_order_and_each_chunk_has_a_statement() {
        for count in [0, 1, 3, 64, 100, 1000] {
            let rows: Vec<usize> = (0..count).collect();
            let all_chunks: Vec<&[usize]> = chunks(&rows).collect();
            assert_eq!(all_chunks.concat(), rows);
            for chunk in all_chunks {
                let columns = CONNECTION_VALUES.split(',').count();
                for updates in [Updates::All, Updates::SameInIndex, Updates::ChangedInIndex] {
                    let insert = insert_connections(chunk.len(), updates);
                    let placeholders = insert.sql().matches('?').count();
                    assert_eq!(placeholders, columns * chunk.len());
                }
            }
        }
    }
}
