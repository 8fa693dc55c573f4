//! What a client can say, whatever its dialect.

use crate::domain::{ClientInfo, ClientKind, MessageId, Timestamp};
use crate::protocol::Rejection;

/// What a client said.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientMessage {
    /// It is there, and this is what it is.
    Online(Box<Online>),
    /// It is gone. Carries nothing: a will is built once at the client's start, so neither its
    /// `sent` nor its `message_id` says anything about when it left.
    Offline,
    /// It has just connected. It may have been online before; this alone registers nobody.
    Heartbeat,
    /// An answer to something that it was sent. It lives, too.
    Response(ClientResponse),
    /// It wanted to register and cannot: it is to be told why.
    InvalidHandshake(HandshakeError),
    /// A type or event that we do not know, or an empty payload: no effect, by design.
    Ignored,
}

/// An online message, or a handshake.
#[derive(Debug, Clone, PartialEq)]
pub struct Online {
    /// What it is.
    pub kind: ClientKind,
    /// The sender's id of it, if it gave one.
    pub message_id: Option<MessageId>,
    /// The sender's clock, if it could be read. Not to be trusted: see `record::fold`.
    pub sent: Option<Timestamp>,
    /// What it says of itself.
    pub reported: ClientInfo,
}

/// An answer of a client.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientResponse {
    /// To a ping.
    Pong {
        /// The command that it answers.
        to: Option<MessageId>,
    },
    /// Of an application.
    Data {
        /// The message that it answers.
        to: Option<MessageId>,
        /// What the application goes by.
        directive: String,
    },
    /// The client could not handle a message.
    Error {
        /// Which.
        to: Option<MessageId>,
        /// Why, in the client's words.
        details: String,
    },
}

/// A handshake that cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeError {
    /// The handshake's id, if it had one.
    pub in_response_to: Option<MessageId>,
    /// What is wrong with it.
    pub why: Rejection,
}
