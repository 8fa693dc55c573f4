//! Startup sweep: ends connections that were recorded before a restart of the embedded broker and
//! whose clients have not reconnected. A crash of the broker publishes no last wills.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;

use crate::domain::ClientId;
use crate::shutdown::TaskGroup;
use crate::store::Store;

/// Number of rows per query. Limits how many connections are ended concurrently.
const CHUNK_ROWS: u32 = 1000;
const QUERY_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Waits for `reconnect_grace`, then calls `end_if_not_connected` for each recorded connection.
///
/// `end_if_not_connected` returns `None` if the client is connected to the broker. It must not rely
/// on online messages, because some clients send none after a reconnect.
pub async fn startup_sweep<E, F>(
    store: Arc<dyn Store>,
    reconnect_grace: Duration,
    end_if_not_connected: E,
    tasks: TaskGroup,
) where
    E: Fn(&ClientId) -> Option<F>,
    F: Future<Output = bool>,
{
    let sweep = async {
        tokio::time::sleep(reconnect_grace).await;
        let mut ended = 0_usize;
        let mut after: Option<ClientId> = None;
        loop {
            let chunk = match store.list_client_ids(after.as_ref(), CHUNK_ROWS).await {
                Ok(chunk) => chunk,
                Err(error) => {
                    tracing::warn!(%error, "startup sweep query failed; retrying");
                    tokio::time::sleep(QUERY_RETRY_INTERVAL).await;
                    continue;
                }
            };
            let Some(last) = chunk.last().cloned() else {
                break;
            };
            ended += join_all(chunk.iter().filter_map(&end_if_not_connected))
                .await
                .len();
            after = Some(last);
        }
        tracing::info!(ended, "startup sweep finished");
    };
    tokio::select! {
        () = sweep => {}
        () = tasks.cancelled() => {}
    }
}
