//! Settings of the section `[mqtt]`.
#![allow(missing_docs, reason = "config.default.toml documents every setting")]

use std::path::PathBuf;

use serde::Deserialize;

use protocol::HandshakeTopicLevels;
use service::settings::deserialize::{optional_path, optional_pem, optional_text};
use service::settings::{
    HumanDuration, InvalidValue, PemSource, SecretString, require_nonzero_duration,
};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MqttSettings {
    #[serde(deserialize_with = "optional_text")]
    pub url: Option<String>,
    pub client_id: String,
    #[serde(deserialize_with = "optional_text")]
    pub shared_subscription_group: Option<String>,
    pub ingest_messages: IngestMessages,
    #[serde(deserialize_with = "optional_pem")]
    pub ca: Option<PemSource>,
    #[serde(deserialize_with = "optional_path")]
    pub certificate: Option<PathBuf>,
    #[serde(deserialize_with = "optional_path")]
    pub key: Option<PathBuf>,
    pub username: String,
    pub password: SecretString,
    #[serde(deserialize_with = "optional_path")]
    pub token_file: Option<PathBuf>,
    #[serde(deserialize_with = "optional_path")]
    pub token_key: Option<PathBuf>,
    pub token_ttl: HumanDuration,
    pub max_packet_size: usize,
    pub prefixes: Vec<String>,
    pub handshake_topics: HandshakeTopicLevels,
    pub publish_timeout: HumanDuration,
}

/// The messages that an `ingest` process forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IngestMessages {
    All,
    /// All messages except responses on a topic for responses. Heartbeats are published on the same
    /// topic, and are forwarded.
    Presence,
    /// Only responses on a topic for responses.
    Responses,
}

impl MqttSettings {
    /// Checks values that have the right type but are not allowed.
    ///
    /// # Errors
    /// When a value is not allowed. Only the first problem is reported.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        self.validate_topic_prefixes()?;
        self.validate_handshake_topics()?;
        self.validate_external_broker()?;
        require_nonzero_duration("mqtt.publish_timeout", self.publish_timeout)
    }

    fn validate_topic_prefixes(&self) -> Result<(), InvalidValue> {
        if self.prefixes.is_empty() {
            return Err(InvalidValue::new(
                "mqtt.prefixes",
                "the list is empty, so no messages would be received",
                "add a prefix, such as [\"redhat/insights\"]",
            ));
        }
        for prefix in &self.prefixes {
            let is_invalid = prefix.split('/').any(str::is_empty)
                || prefix.contains(['+', '#', '\0'])
                || prefix.starts_with('$');
            if is_invalid {
                return Err(InvalidValue::new(
                    "mqtt.prefixes",
                    format!("{prefix:?} is not a valid topic prefix"),
                    "use topic levels separated by /, without wildcards and without a leading $, \
                     such as \"redhat/insights\"",
                ));
            }
        }
        Ok(())
    }

    fn validate_handshake_topics(&self) -> Result<(), InvalidValue> {
        let mut topic_levels = vec![
            (
                "mqtt.handshake_topics.in",
                &self.handshake_topics.inbound_level,
            ),
            (
                "mqtt.handshake_topics.out",
                &self.handshake_topics.outbound_level,
            ),
        ];
        topic_levels.extend(
            self.handshake_topics
                .status_level
                .as_ref()
                .map(|level| ("mqtt.handshake_topics.status", level)),
        );
        for (index, (setting_name, level)) in topic_levels.iter().enumerate() {
            if level.is_empty() || level.contains(['/', '+', '#', '\0']) {
                return Err(InvalidValue::new(
                    setting_name,
                    format!("{level:?} is not one topic level"),
                    "use a text without /, + and #",
                ));
            }
            let duplicate = topic_levels[..index]
                .iter()
                .find(|(_, other)| other == level);
            if let Some((other_setting, _)) = duplicate {
                return Err(InvalidValue::new(
                    setting_name,
                    format!("{level:?} is also the value of {other_setting}"),
                    "use a different value for each of mqtt.handshake_topics",
                ));
            }
        }
        Ok(())
    }

    fn validate_external_broker(&self) -> Result<(), InvalidValue> {
        let Some(url) = &self.url else {
            return Ok(());
        };
        let schemes = ["mqtt://", "mqtts://", "ws://", "wss://"];
        if !schemes.iter().any(|scheme| url.starts_with(scheme)) {
            return Err(InvalidValue::new(
                "mqtt.url",
                format!("{url:?} is not the URL of an MQTT broker"),
                "start it with mqtt://, mqtts://, ws:// or wss://",
            ));
        }
        if self.certificate.is_some() != self.key.is_some() {
            return Err(InvalidValue::new(
                "mqtt.certificate",
                "only one of mqtt.certificate and mqtt.key is set",
                "set both settings, or neither of them",
            ));
        }
        if self.ingest_messages != IngestMessages::All && self.shared_subscription_group.is_some() {
            return Err(InvalidValue::new(
                "mqtt.ingest_messages",
                "a shared subscription already distributes the messages over several processes",
                "set it to \"all\", or unset mqtt.shared_subscription_group",
            ));
        }
        let has_token = self.token_file.is_some() || self.token_key.is_some();
        if has_token && !url.starts_with("ws") {
            return Err(InvalidValue::new(
                "mqtt.url",
                "a token requires a WebSocket connection, because it is sent in an HTTP header",
                "use ws:// or wss://, or unset mqtt.token_file and mqtt.token_key",
            ));
        }
        if self.client_id.is_empty() {
            return Err(InvalidValue::new(
                "mqtt.client_id",
                "it is empty, but a persistent session needs a client id",
                "set it to an id that no other MQTT client uses",
            ));
        }
        Ok(())
    }
}
