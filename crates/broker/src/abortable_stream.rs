//! A client's network stream, plain or TLS, that another task can abort.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use mqtt5::broker::transport::WebSocketTransport;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

pub(super) enum ClientStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A handle that aborts one [`AbortableStream`]. All clones of a handle abort the same stream.
#[derive(Debug, Clone, Default)]
pub(super) struct AbortHandle(Arc<AtomicBool>);

impl AbortHandle {
    /// Aborts the stream: every later read and write fails.
    pub fn abort(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn check_not_aborted(&self) -> io::Result<()> {
        if self.0.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

/// The stream through which `mqtt5` reads and writes packets.
///
/// `mqtt5` sends a PUBACK after the publish hook returns, even if the message was not stored. To
/// prevent the PUBACK, the hook aborts the stream.
///
/// The plain and TLS transports of `mqtt5` use concrete stream types that cannot be aborted. The
/// WebSocket transport accepts any stream, so this type implements [`WebSocketTransport`]. The
/// stream contains plain MQTT packets, without WebSocket frames.
pub(super) struct AbortableStream {
    stream: ClientStream,
    peer: SocketAddr,
    abort_handle: AbortHandle,
}

impl AbortableStream {
    pub fn new(stream: ClientStream, peer: SocketAddr, abort_handle: AbortHandle) -> Self {
        Self {
            stream,
            peer,
            abort_handle,
        }
    }
}

impl WebSocketTransport for AbortableStream {
    fn peer_addr(&self) -> mqtt5::error::Result<SocketAddr> {
        Ok(self.peer)
    }
}

impl AsyncRead for AbortableStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.abort_handle.check_not_aborted()?;
        match &mut self.stream {
            ClientStream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            ClientStream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for AbortableStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.abort_handle.check_not_aborted()?;
        match &mut self.stream {
            ClientStream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            ClientStream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.abort_handle.check_not_aborted()?;
        match &mut self.stream {
            ClientStream::Plain(stream) => Pin::new(stream).poll_flush(context),
            ClientStream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            ClientStream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            ClientStream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
