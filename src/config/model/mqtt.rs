//! Settings of the section `[mqtt]`.

use std::path::PathBuf;

use serde::Deserialize;

use super::PemSource;
use super::deserialize::{optional_path, optional_pem, optional_text};
use crate::config::{HumanDuration, Secret};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mqtt {
    #[serde(deserialize_with = "optional_text")]
    pub url: Option<String>,
    pub client_id: String,
    #[serde(deserialize_with = "optional_text")]
    pub shared_subscription_group: Option<String>,
    #[serde(deserialize_with = "optional_pem")]
    pub ca: Option<PemSource>,
    #[serde(deserialize_with = "optional_path")]
    pub certificate: Option<PathBuf>,
    #[serde(deserialize_with = "optional_path")]
    pub key: Option<PathBuf>,
    pub username: String,
    pub password: Secret,
    #[serde(deserialize_with = "optional_path")]
    pub token_file: Option<PathBuf>,
    #[serde(deserialize_with = "optional_path")]
    pub token_key: Option<PathBuf>,
    pub token_ttl: HumanDuration,
    pub max_packet_size: usize,
    pub prefixes: Vec<String>,
    pub handshake_topics: HandshakeTopics,
    pub publish_timeout: HumanDuration,
}

/// Topic levels of the handshake dialect. A topic is `{prefix}/{level}/{client id}`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandshakeTopics {
    #[serde(rename = "in")]
    pub inbound_level: String,
    #[serde(rename = "out")]
    pub outbound_level: String,
    #[serde(rename = "status", deserialize_with = "optional_text")]
    pub status_level: Option<String>,
}
