//! A client's network connection, plain or TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

pub(super) struct NetworkStream {
    transport: Transport,
    /// Bytes that were read and then returned with [`NetworkStream::unread`].
    unread: Vec<u8>,
}

enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl NetworkStream {
    pub fn plain(stream: TcpStream) -> Self {
        Self::new(Transport::Plain(stream))
    }

    pub fn tls(stream: TlsStream<TcpStream>) -> Self {
        Self::new(Transport::Tls(Box::new(stream)))
    }

    fn new(transport: Transport) -> Self {
        Self {
            transport,
            unread: Vec::new(),
        }
    }

    /// Returns bytes to the stream. The next read returns them first.
    pub fn unread(&mut self, bytes: &[u8]) {
        self.unread.splice(..0, bytes.iter().copied());
    }

    /// Returns whether the peer has closed the connection. There may be unread bytes that the peer
    /// sent before.
    pub fn is_closed_by_peer(&self) -> bool {
        let stream = match &self.transport {
            Transport::Plain(stream) => stream,
            Transport::Tls(stream) => stream.get_ref().0,
        };
        let ready = stream.ready(Interest::READABLE).now_or_never();
        ready.is_some_and(|ready| ready.is_ok_and(Ready::is_read_closed))
    }
}

impl AsyncRead for NetworkStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let count = self.unread.len().min(buffer.remaining());
            buffer.put_slice(&self.unread[..count]);
            if count == self.unread.len() {
                self.unread = Vec::new();
            } else {
                self.unread.drain(..count);
            }
            return Poll::Ready(Ok(()));
        }
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for NetworkStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(context),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
