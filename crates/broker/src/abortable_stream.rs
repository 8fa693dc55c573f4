//! A client's stream that another task can abort.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use mqtt5::broker::transport::WebSocketTransport;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::client_stream::ClientStream;
use super::packet_reader::PacketReader;
use super::stream_handle::StreamHandle;

/// The stream through which `mqtt5` reads and writes packets.
///
/// `mqtt5` sends a PUBACK after the publish hook returns, even if the message was not stored. To
/// prevent the PUBACK, the hook aborts the stream. [`PacketReader`] limits the memory of the packets
/// that `mqtt5` reads.
///
/// The plain and TLS transports of `mqtt5` use concrete stream types that cannot be aborted. The
/// WebSocket transport accepts any stream, so this type implements [`WebSocketTransport`]. `mqtt5`
/// reads and writes plain MQTT packets. If the client uses WebSocket, [`ClientStream`] adds and
/// removes the frames.
pub(super) struct AbortableStream {
    stream: ClientStream,
    peer: SocketAddr,
    handle: StreamHandle,
    packet_reader: PacketReader,
}

impl AbortableStream {
    pub fn new(
        stream: ClientStream,
        peer: SocketAddr,
        handle: StreamHandle,
        packet_reader: PacketReader,
    ) -> Self {
        Self {
            stream,
            peer,
            handle,
            packet_reader,
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
        self.handle.check_not_aborted()?;
        let Self {
            stream,
            packet_reader,
            ..
        } = &mut *self;
        packet_reader.poll_read(stream, context, buffer)
    }
}

impl AsyncWrite for AbortableStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.handle.check_not_aborted()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.handle.check_not_aborted()?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
