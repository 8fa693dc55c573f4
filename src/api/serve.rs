//! Serving HTTP, with or without TLS: bounded connections, callers that must get on with what they
//! send and take, an orderly end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::middleware::Peer;
use super::write_timeout::WriteTimeoutStream;
use crate::shutdown::TaskGroup;
use crate::telemetry::metrics::LogThrottle;
use crate::tls_server::ServerTls;

/// A caller that has not sent its headers by then is cut off, and one that has not finished the TLS
/// handshake.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// How much is read of a request's head before it is given up, in bytes, roughly: 431.
const HEAD_MAX_BYTES: usize = 64 * 1024;
/// Connections of callers at once; more wait to be accepted.
const CONNECTIONS_MOST: usize = 4096;
/// CursorParam a failed accept (out of file descriptors, most likely): time for some to be closed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves until `stopper` asks, then finishes the requests that are under way.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    router: Router,
    stopper: TaskGroup,
) {
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
            Ok((stream, peer)) => {
                let connection =
                    secured(stream, peer, tls.clone(), router.clone(), stopper.clone());
                stopper.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            Err(error) => {
                static SAID: LogThrottle = LogThrottle::new();
                if SAID.now() {
                    tracing::warn!(%error, "cannot accept callers");
                }
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn secured(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Arc<ServerTls>>,
    router: Router,
    stopper: TaskGroup,
) {
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else {
        return one_connection(stream, peer, router, stopper).await;
    };
    match timeout(HEADERS_WITHIN, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => one_connection(stream, peer, router, stopper).await,
        Ok(Err(error)) => tracing::debug!(%peer, %error, "a caller's TLS handshake failed"),
        Err(_) => tracing::debug!(%peer, "a caller did not finish its TLS handshake"),
    }
}

async fn one_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: SocketAddr,
    router: Router,
    stopper: TaskGroup,
) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_buf_size(HEAD_MAX_BYTES)
        .serve_connection(TokioIo::new(WriteTimeoutStream::new(stream)), service);
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
