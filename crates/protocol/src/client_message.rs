//! Decoded messages from clients, independent of the dialect.

use crate::Rejection;
use domain::{ClientInfo, ClientKind, MessageId, Timestamp};

/// A message from a client.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientMessage {
    /// The client is connected and reports its information.
    Online(Box<OnlineMessage>),
    /// The client is disconnected.
    Offline {
        /// Time at which the client built the message. A client builds its last will once, at process
        /// start, so this is not always the time when the client disconnected. `None` if the time is
        /// missing or invalid.
        sent: Option<Timestamp>,
    },
    /// A message that only proves that the client is connected. A heartbeat can reconnect a
    /// disconnected client, but never registers a new client.
    Heartbeat,
    /// A response to a message from the service. A response also counts as a heartbeat.
    Response(ClientResponse),
    /// A handshake that cannot be accepted. The service replies with a `handshake-error`.
    InvalidHandshake(HandshakeError),
    /// An unknown message type or event, or the empty payload that clears a retained message.
    Ignored,
}

/// An online message of the status dialect, or a handshake of the handshake dialect.
#[derive(Debug, Clone, PartialEq)]
pub struct OnlineMessage {
    /// The kind of the client.
    pub kind: ClientKind,
    /// The message id. `None` if the client sent no message id.
    pub message_id: Option<MessageId>,
    /// Time at which the client sent the message. The client's clock may be wrong. `None` if the
    /// time is missing or invalid.
    pub sent: Option<Timestamp>,
    /// The information that the client reports about itself.
    pub info: ClientInfo,
}

/// A client's response to a message from the service.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientResponse {
    /// The response to a ping.
    Pong {
        /// Message id of the ping.
        response_to: Option<MessageId>,
    },
    /// A response from an application on the client.
    Data {
        /// Message id of the message that the application responds to.
        response_to: Option<MessageId>,
        /// Name of the application that responds.
        directive: String,
    },
    /// The client could not handle a message.
    Error {
        /// Message id of the message that the client could not handle.
        response_to: Option<MessageId>,
        /// The client's description of the error.
        details: String,
    },
}

/// The error that the service reports to a client whose handshake is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeError {
    /// Message id of the rejected handshake. `None` if the id is missing or invalid.
    pub in_response_to: Option<MessageId>,
    /// The reason for which the handshake is rejected.
    pub rejection: Rejection,
}
