//! Serving HTTP: bounded connections, callers that must finish their headers, an orderly end.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::shutdown::Stopper;
use crate::telemetry::metrics::Occasionally;

/// A caller that has not sent its headers by then is cut off.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// How much is read of a request's head before it is given up, in bytes, roughly: 431.
const HEAD_MAX_BYTES: usize = 64 * 1024;
/// Connections of callers at once; more wait to be accepted.
const CONNECTIONS_MOST: usize = 4096;
/// After a failed accept (out of file descriptors, most likely): time for some to be closed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves until `stopper` asks, then finishes the requests that are under way.
pub async fn serve(listener: TcpListener, router: Router, stopper: Stopper) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MOST));
    loop {
        let accepting = async {
            // Never closed, so there is always a permit to come.
            let place = places.clone().acquire_owned().await.ok();
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            accepted = accepting => accepted,
            () = stopper.asked() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = one_connection(stream, router.clone(), stopper.clone());
                stopper.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            Err(error) => {
                static SAID: Occasionally = Occasionally::new();
                if SAID.now() {
                    tracing::warn!(%error, "cannot accept callers");
                }
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn one_connection(stream: TcpStream, router: Router, stopper: Stopper) {
    let _ = stream.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_buf_size(HEAD_MAX_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopper.asked() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a caller's connection ended");
    }
}
