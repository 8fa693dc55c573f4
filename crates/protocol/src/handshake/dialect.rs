//! The implementation of [`Dialect`] for the handshake dialect.

use uuid::Uuid;

use super::{decode, encode};
use crate::{
    Channel, ChannelTopic, ClientMessage, Command, Dialect, DialectSettings, Direction,
    EncodedMessage, HandshakeError, Rejection,
};
use domain::{DialectName, OutgoingMessage, Timestamp};

/// The name of the handshake dialect.
pub const NAME: DialectName = DialectName::from_static("handshake");

/// All messages from the client.
pub const FROM_CLIENT: Channel =
    Channel::new(&HandshakeDialect, "handshake", Direction::FromClient);
/// All messages to the client.
pub const TO_CLIENT: Channel = Channel::new(&HandshakeDialect, "handshake", Direction::ToClient);
/// Presence messages from the client. Only used if the deployment configures a separate topic for
/// presence messages.
pub const STATUS_FROM_CLIENT: Channel =
    Channel::new(&HandshakeDialect, "status", Direction::FromClient);

/// The handshake dialect, on the topics `{prefix}/in|out|status/{client}`. The levels are settings.
#[derive(Debug, Clone, Copy)]
pub struct HandshakeDialect;

impl Dialect for HandshakeDialect {
    fn name(&self) -> DialectName {
        NAME
    }

    fn topics(&self, settings: &DialectSettings) -> Vec<ChannelTopic> {
        let levels = &settings.handshake_topics;
        let mut topics = vec![
            ChannelTopic::new(FROM_CLIENT, &levels.inbound_level, ""),
            ChannelTopic::new(TO_CLIENT, &levels.outbound_level, ""),
        ];
        if let Some(status_level) = &levels.status_level {
            topics.push(ChannelTopic::new(STATUS_FROM_CLIENT, status_level, ""));
        }
        topics
    }

    fn decode(&self, _channel: Channel, payload: &[u8]) -> Result<ClientMessage, Rejection> {
        decode::decode(payload)
    }

    fn is_response_or_heartbeat(&self, _channel: Channel, payload: &[u8]) -> bool {
        decode::is_response(payload)
    }

    fn response_content_field(&self) -> &'static str {
        "payload"
    }

    fn encode_message(&self, message: &OutgoingMessage) -> EncodedMessage {
        EncodedMessage {
            channel: TO_CLIENT,
            payload: encode::encode_message(message),
        }
    }

    fn encode_command(
        &self,
        command: &Command,
        message_id: Uuid,
        now: Timestamp,
    ) -> Option<EncodedMessage> {
        Some(EncodedMessage {
            channel: TO_CLIENT,
            payload: encode::encode_command(command, message_id, now)?,
        })
    }

    fn encode_handshake_error(
        &self,
        error: &HandshakeError,
        message_id: Uuid,
        now: Timestamp,
    ) -> Option<EncodedMessage> {
        Some(EncodedMessage {
            channel: TO_CLIENT,
            payload: encode::encode_handshake_error(error, message_id, now),
        })
    }

    fn reports_dispatchers(&self) -> bool {
        false
    }
}
