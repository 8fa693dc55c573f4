//! The stream of MQTT packets of one client: directly on the network connection, or in WebSocket
//! frames.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::network_stream::NetworkStream;
use super::websocket::WebSocketStream;

pub(super) enum ClientStream {
    Direct(NetworkStream),
    WebSocket(Box<WebSocketStream<NetworkStream>>),
}

/// A stream that the packet reader can read.
pub(super) trait PacketSource: AsyncRead + Unpin {
    /// Returns whether the peer has closed the connection. There may be unread bytes that the peer
    /// sent before.
    fn is_closed_by_peer(&self) -> bool;
}

impl PacketSource for ClientStream {
    fn is_closed_by_peer(&self) -> bool {
        match self {
            Self::Direct(stream) => stream.is_closed_by_peer(),
            Self::WebSocket(stream) => stream.get_ref().is_closed_by_peer(),
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Direct(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::WebSocket(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Direct(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::WebSocket(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Direct(stream) => Pin::new(stream).poll_flush(context),
            Self::WebSocket(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Direct(stream) => Pin::new(stream).poll_shutdown(context),
            Self::WebSocket(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
