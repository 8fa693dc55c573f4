//! Startup sweep: ends the recorded connections of clients that have not reconnected after a
//! restart of the embedded broker. The sweep is necessary, because a broker that crashes publishes
//! no last wills.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;

use domain::ClientId;
use service::TaskGroup;
use store::MaintenanceRepository;

/// Number of client ids per query. Also the maximum number of connections that are ended
/// concurrently.
const CLIENT_IDS_PER_QUERY: u32 = 1000;
const QUERY_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Waits for `reconnect_grace`, then calls `end_if_not_connected` for each recorded connection.
///
/// `end_if_not_connected` returns `None` if the client is connected to the broker. `end_if_not_connected`
/// must check the broker's connections instead of online messages, because some clients send no
/// online message after a reconnect.
pub async fn run_startup_sweep<E, F>(
    maintenance: Arc<dyn MaintenanceRepository>,
    reconnect_grace: Duration,
    end_if_not_connected: E,
    tasks: TaskGroup,
) where
    E: Fn(&ClientId) -> Option<F>,
    F: Future<Output = bool>,
{
    let sweep = async {
        tokio::time::sleep(reconnect_grace).await;
        let mut ended_connections = 0_usize;
        let mut last_client_id: Option<ClientId> = None;
        loop {
            let client_ids = match maintenance
                .list_client_ids(last_client_id.as_ref(), CLIENT_IDS_PER_QUERY)
                .await
            {
                Ok(client_ids) => client_ids,
                Err(error) => {
                    tracing::warn!(%error, "startup sweep query failed; retrying");
                    tokio::time::sleep(QUERY_RETRY_INTERVAL).await;
                    continue;
                }
            };
            let Some(last) = client_ids.last().cloned() else {
                break;
            };
            ended_connections += join_all(client_ids.iter().filter_map(&end_if_not_connected))
                .await
                .len();
            last_client_id = Some(last);
        }
        tracing::info!(ended_connections, "startup sweep finished");
    };
    tokio::select! {
        () = sweep => {}
        () = tasks.cancelled() => {}
    }
}
