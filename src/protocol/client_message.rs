//! Decoded messages from clients, independent of the dialect.

use crate::domain::{ClientInfo, ClientKind, MessageId, Timestamp};
use crate::protocol::Rejection;

/// A message from a client.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientMessage {
    /// The client is connected and reports its information.
    Online(Box<Online>),
    /// The client is disconnected.
    ///
    /// The variant has no data. A client builds its last will once, at process start, so the will's
    /// `sent` and `message_id` do not tell when the client disconnected.
    Offline,
    /// The client has connected to the broker. A heartbeat can restore a disconnected client, but
    /// it never registers a new one.
    Heartbeat,
    /// A response to a message from the service. It also counts as a heartbeat.
    Response(ClientResponse),
    /// A handshake that cannot be accepted. The service replies with a `handshake-error`.
    InvalidHandshake(HandshakeError),
    /// An unknown message type or event, or the empty payload that clears a retained message.
    Ignored,
}

/// An online message of the status dialect, or a handshake of the handshake dialect.
#[derive(Debug, Clone, PartialEq)]
pub struct Online {
    /// The kind of the client.
    pub kind: ClientKind,
    /// The message id, if the client sent one.
    pub message_id: Option<MessageId>,
    /// When the client sent the message, if that is readable. The client's clock may be wrong.
    pub sent: Option<Timestamp>,
    /// The information that the client reports about itself.
    pub info: ClientInfo,
}

/// A client's response to a message from the service.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientResponse {
    /// The response to a ping.
    Pong {
        /// Id of the ping.
        response_to: Option<MessageId>,
    },
    /// A response from an application on the client.
    Data {
        /// Id of the message that the application responds to.
        response_to: Option<MessageId>,
        /// Names the application that responds.
        directive: String,
    },
    /// The client could not handle a message.
    Error {
        /// Id of that message.
        response_to: Option<MessageId>,
        /// The client's description of the error.
        details: String,
    },
}

/// Why a handshake cannot be accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeError {
    /// Id of the handshake, if it is valid.
    pub in_response_to: Option<MessageId>,
    /// The problem with the handshake.
    pub rejection: Rejection,
}
