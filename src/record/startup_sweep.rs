//! After a start: whoever was connected before and does not come back is gone.
//!
//! A crash of the embedded broker cut every connection without a word, so no will told of it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;

use crate::domain::ClientId;
use crate::shutdown::TaskGroup;
use crate::store::Store;

/// How many rows are looked at, at a time.
const CHUNK: u32 = 1000;
/// How long to wait before asking a database again that did not answer.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Waits for the grace, then asks `end_if_not_connected` about every client that has a row. A client that is
/// back has a link, whether or not it said online again, and whatever any clock says.
pub async fn startup_sweep<E, F>(
    store: Arc<dyn Store>,
    grace: Duration,
    end_if_not_connected: E,
    stopper: TaskGroup,
) where
    E: Fn(&ClientId) -> Option<F>,
    F: Future<Output = bool>,
{
    let sweep = async {
        tokio::time::sleep(grace).await;
        let mut ended = 0_usize;
        let mut after: Option<ClientId> = None;
        loop {
            let chunk = match store.client_ids(after.as_ref(), CHUNK).await {
                Ok(chunk) => chunk,
                Err(error) => {
                    tracing::warn!(%error, "cannot look for clients that stayed away; trying again");
                    tokio::time::sleep(ASK_AGAIN).await;
                    continue;
                }
            };
            let Some(last) = chunk.last().cloned() else {
                break;
            };
            // One chunk at a time is under way, so memory stays bounded.
            ended += join_all(chunk.iter().filter_map(&end_if_not_connected))
                .await
                .len();
            after = Some(last);
        }
        tracing::info!(
            ended,
            "clients that did not come back after the start are gone"
        );
    };
    tokio::select! {
        () = sweep => {}
        () = stopper.asked() => {}
    }
}
