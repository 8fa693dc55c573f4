//! A minimal WebSocket client. It sends each write as one binary frame.

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};

const FINAL_BINARY_FRAME: u8 = 0x82;
/// Flag in the second byte of a frame: the payload is masked.
const MASKED: u8 = 0x80;
const MASK: [u8; 4] = [0x12, 0x34, 0x56, 0x78];
/// Opcode of a close frame.
const CLOSE: u8 = 8;
/// Maximum size of a write that becomes one frame.
const MAX_FRAME_BYTES: usize = 4 * 1024 * 1024;

/// Returns the request that opens a connection, with additional header lines.
pub fn handshake_request(header_lines: &str) -> String {
    format!(
        "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         {header_lines}\r\n"
    )
}

/// Returns a masked frame. `first_byte` contains the opcode and the flag for the last frame of a
/// message.
pub fn frame(first_byte: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first_byte];
    match payload.len() {
        len @ 0..=125 => frame.push(MASKED | u8::try_from(len).unwrap()),
        len @ 126..=0xffff => {
            frame.push(MASKED | 0x7e);
            frame.extend(u16::try_from(len).unwrap().to_be_bytes());
        }
        len => {
            frame.push(MASKED | 0x7f);
            frame.extend((len as u64).to_be_bytes());
        }
    }
    frame.extend(MASK);
    let masked_payload = payload.iter().zip(MASK.iter().cycle());
    frame.extend(masked_payload.map(|(byte, mask)| byte ^ mask));
    frame
}

/// Reads an HTTP response without a body, byte by byte, so that no byte after it is read.
pub async fn read_response_head(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Performs the handshake. Returns a stream of the bytes in the frames.
pub(crate) async fn connect<S>(mut stream: S) -> std::io::Result<DuplexStream>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let request = handshake_request("Sec-WebSocket-Protocol: mqtt\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let response = read_response_head(&mut stream).await?;
    assert!(response.starts_with("HTTP/1.1 101 "), "{response}");
    let lower_case_response = response.to_ascii_lowercase();
    assert!(
        lower_case_response.contains("\r\nsec-websocket-protocol: mqtt\r\n"),
        "{response}"
    );
    let (client_end, bridge_end) = tokio::io::duplex(MAX_FRAME_BYTES);
    let (mut network_reader, mut network_writer) = tokio::io::split(stream);
    let (mut bridge_reader, mut bridge_writer) = tokio::io::split(bridge_end);
    tokio::spawn(async move {
        let mut chunk = vec![0; MAX_FRAME_BYTES];
        while let Ok(count @ 1..) = bridge_reader.read(&mut chunk).await {
            let frame = frame(FINAL_BINARY_FRAME, &chunk[..count]);
            if network_writer.write_all(&frame).await.is_err() {
                break;
            }
            let _ = network_writer.flush().await;
        }
        let _ = network_writer.shutdown().await;
    });
    tokio::spawn(async move {
        while let Ok((opcode, payload)) = read_frame(&mut network_reader).await {
            if opcode == CLOSE || bridge_writer.write_all(&payload).await.is_err() {
                break;
            }
        }
        let _ = bridge_writer.shutdown().await;
    });
    Ok(client_end)
}

/// Reads a frame from a server. Returns its opcode and its payload.
pub async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<(u8, Vec<u8>)> {
    let opcode = stream.read_u8().await? & 0x0f;
    let len = match stream.read_u8().await? {
        0x7e => u64::from(stream.read_u16().await?),
        0x7f => stream.read_u64().await?,
        len => u64::from(len),
    };
    let mut payload = vec![0; usize::try_from(len).unwrap()];
    stream.read_exact(&mut payload).await?;
    Ok((opcode, payload))
}
