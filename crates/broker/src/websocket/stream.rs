//! A stream of bytes in the binary frames of a WebSocket connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};

use super::frame_decoder::{CLOSE_NORMAL, FrameDecoder};

/// Maximum number of payload bytes that are copied, so that they are written together with the
/// header of their frame.
const MAX_COPIED_BYTES: usize = 4096;

/// The server's end of a WebSocket connection, after the handshake.
///
/// Each write becomes one frame. As with all streams, a caller that has written a part of its bytes
/// must write the rest next.
pub(in super::super) struct WebSocketStream<S> {
    stream: S,
    decoder: FrameDecoder,
    /// Bytes that must be written before anything else: a control frame, or a frame header and the
    /// first bytes of its payload.
    output: Vec<u8>,
    /// Number of bytes of `output` that are written.
    output_position: usize,
    /// Number of payload bytes that are missing in the current frame. Control frames can be written
    /// only when this is 0.
    missing_payload: usize,
    /// Payload of a ping that is not answered yet.
    unanswered_ping: Option<Vec<u8>>,
    /// Whether a close frame was written, or is in `output`. No further frames may follow.
    is_closing: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocketStream<S> {
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            decoder: FrameDecoder::default(),
            output: Vec::new(),
            output_position: 0,
            missing_payload: 0,
            unanswered_ping: None,
            is_closing: false,
        }
    }

    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Adds a frame, or its header and the start of its payload, to the output.
    fn add_frame(&mut self, opcode: OpCode, payload_len: usize, payload_start: &[u8]) {
        let header = FrameHeader {
            opcode,
            ..FrameHeader::default()
        };
        // Writing to a vector cannot fail.
        let _ = header.format(payload_len as u64, &mut self.output);
        self.output.extend_from_slice(payload_start);
    }

    fn add_close_frame(&mut self, close_code: u16) {
        if !self.is_closing && self.missing_payload == 0 {
            let payload = close_code.to_be_bytes();
            self.add_frame(OpCode::Control(Control::Close), payload.len(), &payload);
        }
        self.is_closing = true;
    }

    /// Answers the latest ping, if the current frame is complete. Waits until earlier output is
    /// written, because a client that sends pings and does not read must not occupy memory.
    fn add_pong(&mut self) {
        if self.output.is_empty()
            && self.missing_payload == 0
            && !self.is_closing
            && let Some(payload) = self.unanswered_ping.take()
        {
            self.add_frame(OpCode::Control(Control::Pong), payload.len(), &payload);
        }
    }

    fn poll_write_output(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.output_position < self.output.len() {
            let bytes = &self.output[self.output_position..];
            let count = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.output_position += count;
        }
        self.output = Vec::new();
        self.output_position = 0;
        Poll::Ready(Ok(()))
    }

    /// Writes control frames as far as this is possible without waiting. A client that does not read
    /// must not delay the reading of its own packets.
    fn write_control_frames(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.add_pong();
        if !self.output.is_empty()
            && let Poll::Ready(result) = self.poll_write_output(context)
        {
            result?;
            if let Poll::Ready(result) = Pin::new(&mut self.stream).poll_flush(context) {
                result?;
            }
        }
        Ok(())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocketStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            this.write_control_frames(context)?;
            if this.is_closing {
                return Poll::Ready(Ok(()));
            }
            let start = buffer.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
            if buffer.filled().len() == start {
                return Poll::Ready(Ok(()));
            }
            let decoded = this.decoder.decode(&mut buffer.filled_mut()[start..]);
            buffer.set_filled(start + *decoded.as_ref().unwrap_or(&0));
            if let Some(ping) = this.decoder.take_ping() {
                this.unanswered_ping = Some(ping);
            }
            match decoded {
                Err(error) => {
                    this.add_close_frame(error.close_code);
                    this.write_control_frames(context)?;
                    let problem = "the client violated the WebSocket protocol or sent text";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, problem)));
                }
                Ok(_) if this.decoder.is_closed() => {
                    this.add_close_frame(CLOSE_NORMAL);
                    this.write_control_frames(context)?;
                    return Poll::Ready(Ok(()));
                }
                Ok(0) => {}
                Ok(_) => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocketStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        ready!(this.poll_write_output(context))?;
        if this.is_closing {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if this.missing_payload > 0 {
            let bytes = &bytes[..bytes.len().min(this.missing_payload)];
            let count = ready!(Pin::new(&mut this.stream).poll_write(context, bytes))?;
            this.missing_payload -= count;
            return Poll::Ready(Ok(count));
        }
        this.add_pong();
        let copied = &bytes[..bytes.len().min(MAX_COPIED_BYTES)];
        this.add_frame(OpCode::Data(Data::Binary), bytes.len(), copied);
        this.missing_payload = bytes.len() - copied.len();
        if let Poll::Ready(result) = this.poll_write_output(context) {
            result?;
        }
        Poll::Ready(Ok(copied.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.poll_write_output(context))?;
        this.add_pong();
        ready!(this.poll_write_output(context))?;
        Pin::new(&mut this.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.add_close_frame(CLOSE_NORMAL);
        ready!(this.poll_write_output(context))?;
        Pin::new(&mut this.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;

    // Parts of the first byte of a frame.
    pub const FINAL: u8 = 0x80;
    pub const CONTINUE: u8 = 0;
    pub const TEXT: u8 = 1;
    pub const BINARY: u8 = 2;
    pub const CLOSE: u8 = 8;
    pub const PING: u8 = 9;
    pub const PONG: u8 = 10;

    /// Returns a masked frame, as a client sends it.
    pub fn client_frame(first_byte: u8, payload: &[u8]) -> Vec<u8> {
        const MASK: [u8; 4] = [1, 2, 3, 250];
        let mut frame = server_frame(first_byte, payload.len());
        frame[1] |= 0x80;
        frame.extend(MASK);
        frame.extend(payload.iter().zip(MASK.iter().cycle()).map(|(b, m)| b ^ m));
        frame
    }

    /// Returns the header of a frame without a mask, as a server sends it.
    fn server_frame(first_byte: u8, payload_len: usize) -> Vec<u8> {
        let mut frame = vec![first_byte];
        match payload_len {
            0..=125 => frame.push(u8::try_from(payload_len).unwrap()),
            126..=0xffff => {
                frame.push(126);
                frame.extend(u16::try_from(payload_len).unwrap().to_be_bytes());
            }
            _ => {
                frame.push(127);
                frame.extend((payload_len as u64).to_be_bytes());
            }
        }
        frame
    }

    fn connection(buffer_len: usize) -> (DuplexStream, WebSocketStream<DuplexStream>) {
        let (client, server) = tokio::io::duplex(buffer_len);
        (client, WebSocketStream::new(server))
    }

    async fn read_exactly(stream: &mut (impl AsyncRead + Unpin), len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        stream.read_exact(&mut bytes).await.unwrap();
        bytes
    }

    #[tokio::test]
    async fn written_bytes_are_binary_frames_without_a_mask() {
        for payload_len in [1, 125, 126, 4096, 4097, 70_000] {
            // The buffer is smaller than a frame, so the stream writes each frame in parts.
            let (mut client, mut server) = connection(1000);
            let payload: Vec<u8> = (0..=255).cycle().take(payload_len).collect();
            let expected = [server_frame(FINAL | BINARY, payload_len), payload.clone()].concat();
            let write = async {
                server.write_all(&payload).await.unwrap();
                server.flush().await.unwrap();
            };
            let ((), received) = tokio::join!(write, read_exactly(&mut client, expected.len()));
            assert!(received == expected, "{payload_len} bytes");
        }
    }

    #[tokio::test]
    async fn ping_is_answered_between_frames() {
        let (mut client, mut server) = connection(1000);
        let bytes = [
            client_frame(FINAL | PING, b"are you there"),
            client_frame(FINAL | BINARY, b"x"),
        ];
        client.write_all(&bytes.concat()).await.unwrap();
        assert_eq!(read_exactly(&mut server, 1).await, b"x");
        // The pong is written at the latest with the next frame.
        server.write_all(b"y").await.unwrap();
        server.flush().await.unwrap();
        let expected = [
            &server_frame(FINAL | PONG, 13)[..],
            b"are you there",
            &server_frame(FINAL | BINARY, 1),
            b"y",
        ]
        .concat();
        assert_eq!(read_exactly(&mut client, expected.len()).await, expected);
    }

    #[tokio::test]
    async fn ping_during_a_frame_is_answered_after_the_frame() {
        let (mut client, mut server) = connection(100);
        let payload = vec![b'p'; 10_000];
        let (mut reader, mut writer) = tokio::io::split(&mut server);
        let exchange = async {
            let header_len = server_frame(FINAL | BINARY, payload.len()).len();
            read_exactly(&mut client, header_len + 5000).await;
            client
                .write_all(&client_frame(FINAL | PING, b"now"))
                .await
                .unwrap();
            client
                .write_all(&client_frame(FINAL | BINARY, b"z"))
                .await
                .unwrap();
            let rest = read_exactly(&mut client, 5000).await;
            assert!(rest.iter().all(|byte| *byte == b'p'));
            let pong = [&server_frame(FINAL | PONG, 3)[..], b"now"].concat();
            assert_eq!(read_exactly(&mut client, pong.len()).await, pong);
        };
        let write = async {
            writer.write_all(&payload).await.unwrap();
            writer.flush().await.unwrap();
        };
        let read = async { assert_eq!(read_exactly(&mut reader, 1).await, b"z") };
        tokio::join!(exchange, read, write);
    }

    #[tokio::test]
    async fn pings_of_a_client_that_does_not_read_need_little_memory() {
        let (mut client, mut server) = connection(1000);
        let ping = client_frame(FINAL | PING, &[b'p'; 125]);
        let write = async {
            for _ in 0..1000 {
                client.write_all(&ping).await.unwrap();
            }
            client
                .write_all(&client_frame(FINAL | BINARY, b"x"))
                .await
                .unwrap();
        };
        let ((), byte) = tokio::join!(write, server.read_u8());
        assert_eq!(byte.unwrap(), b'x');
        assert!(server.output.len() < 200, "{} bytes", server.output.len());
    }

    #[tokio::test]
    async fn close_frame_is_answered_and_ends_the_stream() {
        let (mut client, mut server) = connection(1000);
        let bytes = [
            client_frame(FINAL | BINARY, b"last"),
            client_frame(FINAL | CLOSE, &[]),
        ];
        client.write_all(&bytes.concat()).await.unwrap();
        let mut received = Vec::new();
        server.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"last");
        let close = [&server_frame(FINAL | CLOSE, 2)[..], &1000_u16.to_be_bytes()].concat();
        assert_eq!(read_exactly(&mut client, close.len()).await, close);
        assert!(server.write_all(b"x").await.is_err());
    }

    #[tokio::test]
    async fn text_frame_closes_the_connection_with_code_1003() {
        let (mut client, mut server) = connection(1000);
        client
            .write_all(&client_frame(FINAL | TEXT, b"text"))
            .await
            .unwrap();
        assert!(server.read_u8().await.is_err());
        let close = [&server_frame(FINAL | CLOSE, 2)[..], &1003_u16.to_be_bytes()].concat();
        assert_eq!(read_exactly(&mut client, close.len()).await, close);
    }

    #[tokio::test]
    async fn shutdown_sends_a_close_frame() {
        let (mut client, mut server) = connection(1000);
        server.shutdown().await.unwrap();
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        assert_eq!(received[..2], server_frame(FINAL | CLOSE, 2));
    }
}
