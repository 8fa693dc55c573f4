//! The trait that each dialect implements.

use std::fmt;

use uuid::Uuid;

use crate::{
    Channel, ChannelTopic, ClientMessage, Command, DialectSettings, Direction, HandshakeError,
    Rejection,
};
use domain::{DialectName, OutgoingMessage, Timestamp};

/// A message format that clients use: its topics, and the decoding and encoding of its messages.
///
/// To add a dialect, create a module with an implementation of this trait and add the
/// implementation to [`crate::DIALECTS`]. No other code changes. An implementation does no I/O and
/// has no state.
pub trait Dialect: fmt::Debug + Send + Sync {
    /// Returns the name of the dialect. The database stores this name, so the name never changes.
    fn name(&self) -> DialectName;

    /// Returns the topic of each channel of the dialect.
    ///
    /// [`crate::TopicScheme`] derives everything else from these topics: the parsing and formatting
    /// of topic names, the subscriptions of the service, and the permissions of clients.
    fn topics(&self, settings: &DialectSettings) -> Vec<ChannelTopic>;

    /// Decodes the payload of a message that a client published on `channel`.
    ///
    /// Call [`crate::decode`] instead of this method. That function rejects payloads that are too
    /// large and messages on channels to clients.
    ///
    /// # Errors
    /// [`Rejection`] if the message can never be processed.
    fn decode(&self, channel: Channel, payload: &[u8]) -> Result<ClientMessage, Rejection>;

    /// Returns whether a message from a client is certainly a response or a heartbeat. Such a
    /// message never registers a client.
    ///
    /// An implementation decodes at most the message type. It returns false if it cannot decode the
    /// message type, and for an empty payload that only clears a retained message.
    fn is_response_or_heartbeat(&self, channel: Channel, payload: &[u8]) -> bool;

    /// Returns the name of the field of a response that has the content for the caller.
    fn response_content_field(&self) -> &'static str {
        "content"
    }

    /// Encodes a message to an application on the client.
    fn encode_message(&self, message: &OutgoingMessage) -> EncodedMessage;

    /// Encodes a command. Returns `None` if the dialect does not have this command.
    fn encode_command(
        &self,
        command: &Command,
        message_id: Uuid,
        now: Timestamp,
    ) -> Option<EncodedMessage>;

    /// Encodes the reply to a [`ClientMessage::InvalidHandshake`]. Returns `None` if the dialect has
    /// no such reply.
    fn encode_handshake_error(
        &self,
        _error: &HandshakeError,
        _message_id: Uuid,
        _now: Timestamp,
    ) -> Option<EncodedMessage> {
        None
    }

    /// Returns the channel on which a client responds to a message on the channel `request`.
    fn response_channel(&self, request: Channel) -> Channel {
        request.with_direction(Direction::FromClient)
    }

    /// Returns whether clients of this dialect report their dispatchers.
    ///
    /// If true, the dispatchers decide which clients are reported to inventory and to the sources
    /// service. If false, a setting decides whether hosts are reported to inventory, and the facts
    /// of a proxy describe its source.
    fn reports_dispatchers(&self) -> bool;
}

/// A message to a client in the client's dialect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedMessage {
    /// The channel to publish the message on.
    pub channel: Channel,
    /// The payload of the MQTT message.
    pub payload: Vec<u8>,
}
