//! The HTTP server. It accepts connections with or without TLS, and shuts down gracefully.
//!
//! The server limits the number of connections. It closes the connection of a caller that sends a
//! request or reads a response too slowly.

use std::net::SocketAddr;
use std::pin::Pin;
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
use tokio_io_timeout::TimeoutWriter;

use super::middleware::{ConnectionStreams, Peer};
use network::tls_server::ServerTls;
use service::LogThrottle;
use service::TaskGroup;

const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time during which the caller reads no response data. After this time, the server closes
/// the connection.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Approximate maximum size of the request line and the headers. The response to a request with
/// larger headers has status 431.
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// Maximum number of open connections. Further connections wait in the accept queue of the
/// operating system.
const MAX_CONNECTIONS: usize = 4096;
/// Delay between a failed accept and the next accept. The usual cause of the failure is a lack of
/// file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Maximum time in which an event stream ends at shutdown. The stream of a caller that does not read
/// would not end.
const STREAM_SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

/// Serves HTTP until `tasks` is cancelled. Then returns without waiting for open connections. The
/// tasks of these connections also belong to `tasks`, and complete the requests in flight.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    router: Router,
    tasks: TaskGroup,
) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accept = async {
            // `acquire_owned` fails only if the semaphore is closed. The semaphore is never closed,
            // so `permit` is always `Some`.
            let permit = permits.clone().acquire_owned().await.ok();
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            accepted = accept => accepted,
            () = tasks.cancelled() => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                let connection =
                    serve_connection(stream, peer, tls.clone(), router.clone(), tasks.clone());
                tasks.spawn_item("http_connection", async move {
                    connection.await;
                    drop(permit);
                });
            }
            Err(error) => {
                static LOG_THROTTLE: LogThrottle = LogThrottle::new();
                if LOG_THROTTLE.should_log() {
                    tracing::warn!(%error, "failed to accept HTTP connection; retrying");
                }
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

/// Performs the TLS handshake if TLS is configured, then serves the connection.
async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Arc<ServerTls>>,
    router: Router,
    tasks: TaskGroup,
) {
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else {
        return serve_http(stream, peer, router, tasks).await;
    };
    match timeout(TLS_HANDSHAKE_TIMEOUT, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => serve_http(stream, peer, router, tasks).await,
        Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
        Err(_) => tracing::debug!(%peer, "TLS handshake timed out"),
    }
}

async fn serve_http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: SocketAddr,
    router: Router,
    tasks: TaskGroup,
) {
    let router = TowerToHyperService::new(router);
    let streams = ConnectionStreams::default();
    let request_streams = streams.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        request.extensions_mut().insert(request_streams.clone());
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(with_write_timeout(stream)), service);
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = tasks.cancelled() => {
            connection.as_mut().graceful_shutdown();
            if streams.has_open_stream() {
                timeout(STREAM_SHUTDOWN_TIMEOUT, connection).await.unwrap_or(Ok(()))
            } else {
                connection.await
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%peer, %error, "HTTP connection failed");
    }
}

/// Returns a stream whose writes fail after [`WRITE_TIMEOUT`] without progress.
fn with_write_timeout<S: AsyncWrite>(stream: S) -> Pin<Box<TimeoutWriter<S>>> {
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(WRITE_TIMEOUT));
    Box::pin(stream)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::Extension;
    use axum::body::Body;
    use axum::routing::{get, post};
    use bytes::Bytes;
    use futures::StreamExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::request_body::RequestBody;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn write_to_a_slow_reader_succeeds_and_write_to_a_stopped_reader_times_out() {
        let (server, mut caller) = tokio::io::duplex(4);
        let mut server = with_write_timeout(server);
        let slow_reader = tokio::spawn(async move {
            for _ in 0..5 {
                tokio::time::sleep(WRITE_TIMEOUT / 2).await;
                caller.read_exact(&mut [0; 4]).await.unwrap();
            }
            caller
        });
        server.write_all(&[0; 20]).await.unwrap();
        let stalled_caller = slow_reader.await.unwrap();
        let error = server.write_all(&[0; 20]).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        drop(stalled_caller);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_stream_that_is_not_read_does_not_delay_the_shutdown() {
        let endless = async |Extension(streams): Extension<ConnectionStreams>| {
            let open_stream = streams.open();
            let frames = futures::stream::repeat(Bytes::from_static(&[b'x'; 1024]));
            Body::from_stream(frames.map(move |frame| {
                let _is_open = &open_stream;
                Ok::<_, Infallible>(frame)
            }))
        };
        let router = Router::new().route("/", get(endless));
        let (server, mut caller) = tokio::io::duplex(1024);
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let tasks = TaskGroup::new();
        let connection = tokio::spawn(serve_http(server, peer, router, tasks.clone()));
        let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        caller.write_all(request).await.unwrap();
        let mut start = [0; 12];
        caller.read_exact(&mut start).await.unwrap();
        assert_eq!(&start, b"HTTP/1.1 200");
        let cancelled_at = tokio::time::Instant::now();
        tasks.cancel();
        connection.await.unwrap();
        assert_eq!(cancelled_at.elapsed(), STREAM_SHUTDOWN_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_of_an_incomplete_request_body_is_closed_after_a_408_response() {
        let router = Router::new().route("/", post(async |_: RequestBody| ()));
        let (server, mut caller) = tokio::io::duplex(1024);
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        tokio::spawn(serve_http(server, peer, router, TaskGroup::new()));
        let request = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{";
        caller.write_all(request).await.unwrap();
        let mut response = String::new();
        caller.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 408 "), "{response}");
    }
}
