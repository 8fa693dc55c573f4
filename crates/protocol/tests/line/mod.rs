//! A dialect for tests: each message is one line of text. Client and service use the topics
//! `{prefix}/{client}/line/out` and `{prefix}/{client}/line/in`.
//!
//! | message | direction |
//! |---|---|
//! | `online {message_id} {fqdn}` | from the client |
//! | `offline`, `heartbeat` | from the client |
//! | `pong {response_to}`, `done {response_to} {directive}` | from the client |
//! | `ping {message_id}`, `disconnect {message_id} {reason}` | to the client |
//! | `run {message_id} {directive} {payload}` | to the client |
//! | `invalid {reason}` | to the client |

use serde_json::json;
use uuid::Uuid;

use domain::{ClientInfo, ClientKind, DialectName, MessageId, OutgoingMessage, Timestamp};
use protocol::{
    Channel, ChannelTopic, ClientMessage, ClientResponse, Command, Dialect, DialectSettings,
    Direction, EncodedMessage, HandshakeError, OnlineMessage, Rejection,
};

pub const NAME: DialectName = DialectName::from_static("line");
pub const FROM_CLIENT: Channel = Channel::new(&LineDialect, "line", Direction::FromClient);
pub const TO_CLIENT: Channel = Channel::new(&LineDialect, "line", Direction::ToClient);

#[derive(Debug)]
pub struct LineDialect;

impl Dialect for LineDialect {
    fn name(&self) -> DialectName {
        NAME
    }

    fn topics(&self, _settings: &DialectSettings) -> Vec<ChannelTopic> {
        vec![
            ChannelTopic::new(FROM_CLIENT, "", "line/out"),
            ChannelTopic::new(TO_CLIENT, "", "line/in"),
        ]
    }

    fn decode(&self, _channel: Channel, payload: &[u8]) -> Result<ClientMessage, Rejection> {
        let line = str::from_utf8(payload)
            .map_err(|_| Rejection::invalid_schema("the line is not UTF-8"))?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            [""] => Ok(ClientMessage::Ignored),
            ["online", message_id, fqdn] => Ok(decode_online(message_id, fqdn)),
            ["offline"] => Ok(ClientMessage::Offline { sent: None }),
            ["heartbeat"] => Ok(ClientMessage::Heartbeat),
            ["pong", response_to] => Ok(ClientMessage::Response(ClientResponse::Pong {
                response_to: MessageId::new(response_to).ok(),
            })),
            ["done", response_to, directive] => Ok(ClientMessage::Response(ClientResponse::Data {
                response_to: MessageId::new(response_to).ok(),
                directive: directive.to_owned(),
            })),
            _ => Err(Rejection::invalid_schema("unknown line")),
        }
    }

    fn is_response_or_heartbeat(&self, _channel: Channel, payload: &[u8]) -> bool {
        let first_word = payload.split(|byte| *byte == b' ').next();
        matches!(first_word, Some(b"heartbeat" | b"pong" | b"done"))
    }

    fn encode_message(&self, message: &OutgoingMessage) -> EncodedMessage {
        let OutgoingMessage {
            message_id,
            directive,
            payload,
            ..
        } = message;
        line_to_client(format!("run {message_id} {directive} {payload}"))
    }

    fn encode_command(
        &self,
        command: &Command,
        message_id: Uuid,
        _now: Timestamp,
    ) -> Option<EncodedMessage> {
        match command {
            Command::Ping => Some(line_to_client(format!("ping {message_id}"))),
            Command::Disconnect { message } => {
                Some(line_to_client(format!("disconnect {message_id} {message}")))
            }
            Command::Reconnect { .. } => None,
        }
    }

    fn encode_handshake_error(
        &self,
        error: &HandshakeError,
        _message_id: Uuid,
        _now: Timestamp,
    ) -> Option<EncodedMessage> {
        Some(line_to_client(format!(
            "invalid {}",
            error.rejection.detail
        )))
    }

    fn reports_dispatchers(&self) -> bool {
        false
    }
}

fn decode_online(message_id: &str, fqdn: &str) -> ClientMessage {
    let message_id = MessageId::new(message_id).ok();
    if fqdn.is_empty() {
        return ClientMessage::InvalidHandshake(HandshakeError {
            in_response_to: message_id,
            rejection: Rejection::invalid_schema("fqdn is empty"),
        });
    }
    ClientMessage::Online(Box::new(OnlineMessage {
        kind: ClientKind::Host,
        message_id,
        sent: None,
        info: ClientInfo {
            canonical_facts: json!({ "fqdn": fqdn }),
            ..ClientInfo::default()
        },
    }))
}

fn line_to_client(line: String) -> EncodedMessage {
    EncodedMessage {
        channel: TO_CLIENT,
        payload: line.into_bytes(),
    }
}
