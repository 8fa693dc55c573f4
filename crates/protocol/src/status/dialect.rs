//! The implementation of [`Dialect`] for the status dialect.

use uuid::Uuid;

use super::{decode_control, decode_data, encode};
use crate::{
    Channel, ChannelTopic, ClientMessage, Command, Dialect, DialectSettings, Direction,
    EncodedMessage, Rejection,
};
use domain::{DialectName, OutgoingMessage, Timestamp};

/// The name of the status dialect.
pub const NAME: DialectName = DialectName::from_static("status");

/// Presence messages, and responses to commands.
pub const CONTROL_FROM_CLIENT: Channel =
    Channel::new(&StatusDialect, "control", Direction::FromClient);
/// Commands.
pub const CONTROL_TO_CLIENT: Channel = Channel::new(&StatusDialect, "control", Direction::ToClient);
/// Responses from applications, and heartbeats.
pub const DATA_FROM_CLIENT: Channel = Channel::new(&StatusDialect, "data", Direction::FromClient);
/// Messages to applications.
pub const DATA_TO_CLIENT: Channel = Channel::new(&StatusDialect, "data", Direction::ToClient);

/// The status dialect, on the topics `{prefix}/{client}/control|data/in|out`.
#[derive(Debug, Clone, Copy)]
pub struct StatusDialect;

impl Dialect for StatusDialect {
    fn name(&self) -> DialectName {
        NAME
    }

    fn topics(&self, _settings: &DialectSettings) -> Vec<ChannelTopic> {
        vec![
            ChannelTopic::new(CONTROL_FROM_CLIENT, "", "control/out"),
            ChannelTopic::new(CONTROL_TO_CLIENT, "", "control/in"),
            ChannelTopic::new(DATA_FROM_CLIENT, "", "data/out"),
            ChannelTopic::new(DATA_TO_CLIENT, "", "data/in"),
        ]
    }

    fn decode(&self, channel: Channel, payload: &[u8]) -> Result<ClientMessage, Rejection> {
        if channel == DATA_FROM_CLIENT {
            decode_data(payload)
        } else {
            decode_control(payload)
        }
    }

    fn is_response_or_heartbeat(&self, channel: Channel, _payload: &[u8]) -> bool {
        channel == DATA_FROM_CLIENT
    }

    fn encode_message(&self, message: &OutgoingMessage) -> EncodedMessage {
        EncodedMessage {
            channel: DATA_TO_CLIENT,
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
            channel: CONTROL_TO_CLIENT,
            payload: encode::encode_command(command, message_id, now),
        })
    }

    fn reports_dispatchers(&self) -> bool {
        true
    }
}
