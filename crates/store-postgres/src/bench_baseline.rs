//! The baseline for the cost of the search index: the same writes without it.

use const_format::concatcp;

use crate::PostgresStore;
use crate::driver::{self, set_based};
use crate::guarded_pool::GuardedConnection;
use crate::upsert::{INSERT_ROWS, UPDATE_ROWS, bind_rows};
use domain::Timestamp;
use store::{ConnectionUpsert, Result};

store::statements! {
    UPSERT_WITHOUT_SEARCH_INDEX = concatcp!("
        WITH upserted AS (", INSERT_ROWS, UPDATE_ROWS, ")
        DELETE FROM disconnected_clients
         WHERE client_id = ANY($1) AND (SELECT count(*) FROM upserted) > 0");
}

/// Writes the rows as the recorder does, but not the search index.
///
/// # Errors
/// When the database is unavailable.
pub async fn record_without_search_index(
    store: &PostgresStore,
    rows: &[ConnectionUpsert],
    now: Timestamp,
) -> Result<()> {
    let no_search_hashes = vec![None::<i64>; rows.len()];
    let query = bind_rows(set_based(UPSERT_WITHOUT_SEARCH_INDEX), rows, now).bind(no_search_hashes);
    let record =
        async |connection: &mut GuardedConnection| driver::execute(connection, query).await;
    store.recorder_connections.with_connection(record).await?;
    Ok(())
}
