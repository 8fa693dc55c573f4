//! The messages of the simulated clients: their bytes, and what they mean.

use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use domain::{IngestStamp, Timestamp};
use protocol::{Channel, ClientMessage, DialectSettings, Direction, InboundMessage, TopicScheme};

const TOPIC_PREFIX: &str = "redhat/insights";

/// Returns the topics of the simulated deployment.
pub fn topic_scheme() -> TopicScheme {
    TopicScheme::new(vec![TOPIC_PREFIX.to_owned()], &DialectSettings::default())
}

/// What an online message contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Online {
    pub message_id: Option<String>,
    pub sent: Option<Timestamp>,
    /// Distinguishes the contents of the client's online messages.
    pub revision: u64,
}

impl Online {
    /// Returns the canonical facts as the database stores them.
    pub fn facts(&self) -> String {
        json!({"fqdn": format!("r{}.example", self.revision)}).to_string()
    }
}

/// What a message means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    Online(Online),
    Offline,
    /// A heartbeat or a response.
    Heartbeat,
    /// A message that can never be processed.
    Invalid,
    /// An empty payload that removes a retained message.
    ClearsRetained,
}

/// A message that a client publishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    pub client_id: String,
    pub topic: String,
    pub payload: Bytes,
    /// Whether the broker must deliver the message (QoS 1). A message with QoS 0 can be lost.
    pub is_reliable: bool,
    pub retain: bool,
    pub content: Content,
}

impl Publication {
    /// Returns the SHA-256 of the payload, in hexadecimal.
    pub fn sha256(&self) -> String {
        format!("{:x}", Sha256::digest(&self.payload))
    }

    /// Returns a short description for the trace.
    pub fn describe(&self) -> String {
        let retain = if self.retain { " retained" } else { "" };
        match &self.content {
            Content::Online(online) => format!(
                "online{retain} id={} sent={} revision={}",
                online.message_id.as_deref().unwrap_or("-"),
                online.sent.map_or("-".to_owned(), |sent| sent.to_string()),
                online.revision
            ),
            Content::Offline => format!("offline{retain}"),
            Content::Heartbeat if self.is_reliable => "response".to_owned(),
            Content::Heartbeat => "heartbeat".to_owned(),
            Content::Invalid => format!("invalid {}", &self.sha256()[..8]),
            Content::ClearsRetained => "clear retained".to_owned(),
        }
    }
}

/// A message as the connector receives it.
#[derive(Debug, Clone)]
pub struct Received {
    /// Number of the publication at the broker. A redelivered message has the number of the first
    /// delivery.
    pub publication_number: u64,
    pub publication: Publication,
    /// Whether the broker delivered a retained message because of a new subscription.
    pub is_retained_replay: bool,
    pub is_operator_replay: bool,
    pub received_at: Timestamp,
    pub stamp: Option<IngestStamp>,
}

impl Received {
    pub fn describe(&self) -> String {
        let mut text = self.publication.describe();
        if self.is_retained_replay {
            text.push_str(" (replay of a retained message)");
        }
        if self.is_operator_replay {
            text.push_str(" (replay by an operator)");
        }
        text
    }
}

/// Creates the messages of one client.
#[derive(Debug, Clone)]
pub struct MessageFactory {
    pub client_id: String,
    pub uses_handshake: bool,
}

impl MessageFactory {
    fn control_topic(&self) -> String {
        if self.uses_handshake {
            format!("{TOPIC_PREFIX}/in/{}", self.client_id)
        } else {
            format!("{TOPIC_PREFIX}/{}/control/out", self.client_id)
        }
    }

    fn data_topic(&self) -> String {
        if self.uses_handshake {
            self.control_topic()
        } else {
            format!("{TOPIC_PREFIX}/{}/data/out", self.client_id)
        }
    }

    fn publication(&self, topic: String, payload: Vec<u8>, content: Content) -> Publication {
        Publication {
            client_id: self.client_id.clone(),
            topic,
            payload: payload.into(),
            is_reliable: true,
            retain: false,
            content,
        }
    }

    /// An online message or, in the other dialect, a retained handshake.
    pub fn online(&self, online: Online) -> Publication {
        let facts: Value = serde_json::from_str(&online.facts()).unwrap_or_default();
        let sent = online.sent.map(|sent| sent.to_string());
        let json = if self.uses_handshake {
            json!({"type": "host-handshake", "message_id": online.message_id, "version": 1,
                "sent": sent, "payload": {"canonical_facts": facts}})
        } else {
            json!({"type": "connection-status", "message_id": online.message_id,
                "response_to": "", "version": 1, "sent": sent, "content": {"state": "online",
                    "canonical_facts": facts, "dispatchers": {"echo": {}}, "tags": null}})
        };
        let payload = json.to_string().into_bytes();
        let mut publication =
            self.publication(self.control_topic(), payload, Content::Online(online));
        publication.retain = self.uses_handshake;
        publication
    }

    /// The last will, which is also the message of a clean disconnect.
    pub fn offline(&self) -> Publication {
        let json = if self.uses_handshake {
            json!({"type": "offline", "message_id": "the-will", "version": 1})
        } else {
            json!({"type": "connection-status", "message_id": "the-will", "version": 1,
                "sent": "2025-12-31T00:00:00Z", "content": {"state": "offline",
                    "dispatchers": null, "canonical_facts": null}})
        };
        let payload = json.to_string().into_bytes();
        self.publication(self.control_topic(), payload, Content::Offline)
    }

    /// The message that removes the retained handshake after a clean disconnect.
    pub fn clear_retained(&self) -> Publication {
        let mut publication =
            self.publication(self.control_topic(), Vec::new(), Content::ClearsRetained);
        publication.retain = true;
        publication
    }

    /// The empty payload that newer clients publish at each connect. The handshake dialect has no
    /// such message.
    pub fn heartbeat(&self) -> Publication {
        let mut publication = self.publication(self.data_topic(), Vec::new(), Content::Heartbeat);
        publication.is_reliable = false;
        publication
    }

    pub fn response(&self, number: u64) -> Publication {
        let json = if self.uses_handshake {
            json!({"type": "message-error", "message_id": number.to_string(), "version": 1,
                "in_response_to": "x", "payload": {"details": "failed"}})
        } else {
            json!({"type": "data", "message_id": number.to_string(), "response_to": "x",
                "version": 1, "directive": "echo", "metadata": {}, "content": "x"})
        };
        let payload = json.to_string().into_bytes();
        self.publication(self.data_topic(), payload, Content::Heartbeat)
    }

    /// A message that can never be processed. Messages of the same kind with different variants have
    /// different bytes.
    pub fn invalid(&self, kind: u64, variant: u64) -> Publication {
        let payload = match kind {
            0 => [b"\xff\xfe", variant.to_string().as_bytes()].concat(),
            1 => format!("[{variant}]").into_bytes(),
            2 if self.uses_handshake => json!({"type": "host-handshake", "variant": variant,
                "payload": {"canonical_facts": {}}})
            .to_string()
            .into_bytes(),
            2 => json!({"type": "connection-status", "variant": variant,
                "content": {"state": "asleep"}})
            .to_string()
            .into_bytes(),
            _ => format!("{{\"type\":\"connection-status\",\"variant\":{variant}").into_bytes(),
        };
        self.publication(self.control_topic(), payload, Content::Invalid)
    }
}

/// Returns the channel of a message that a client publishes.
pub fn channel(topics: &TopicScheme, topic: &str) -> Option<Channel> {
    let topic = topics.parse(topic)?;
    (topic.channel.direction() == Direction::FromClient).then_some(topic.channel)
}

/// Checks that the connector decodes the bytes of a message as the simulation expects.
pub fn check_content(topics: &TopicScheme, publication: &Publication) -> Result<(), String> {
    let message = InboundMessage {
        topic: publication.topic.clone(),
        payload: publication.payload.clone(),
        retained: false,
        is_operator_replay: false,
        is_last_will: None,
        is_takeover: false,
        received_at: Timestamp::UNIX_EPOCH,
        ingest_stamp: None,
        truncated_from: None,
    };
    let channel = channel(topics, &publication.topic).ok_or("unknown topic")?;
    let decoded = protocol::decode(channel, &message);
    let is_expected = match publication.content {
        Content::Online(_) => matches!(decoded, Ok(ClientMessage::Online(_))),
        Content::Offline => matches!(decoded, Ok(ClientMessage::Offline { .. })),
        Content::Heartbeat => {
            matches!(
                decoded,
                Ok(ClientMessage::Heartbeat | ClientMessage::Response(_))
            )
        }
        Content::Invalid => matches!(decoded, Err(_) | Ok(ClientMessage::InvalidHandshake(_))),
        Content::ClearsRetained => publication.payload.is_empty(),
    };
    if is_expected {
        Ok(())
    } else {
        Err(format!(
            "{} is decoded as {decoded:?}",
            publication.describe()
        ))
    }
}
