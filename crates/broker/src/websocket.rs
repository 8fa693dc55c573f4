//! MQTT over WebSocket: the handshake, and a stream that reads and writes WebSocket frames.
//!
//! The payload of a frame is passed on as it arrives. A client may send a packet of several MiB in
//! one frame, and a complete frame in memory would exceed the memory limits of the packet reader.

mod frame_decoder;
mod handshake;
mod stream;

pub(super) use handshake::{HandshakeError, HandshakeRules, accept};
pub(super) use stream::WebSocketStream;
