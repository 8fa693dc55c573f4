//! The configuration as types. What each key means is said in `config.default.toml`, once.
#![allow(missing_docs, reason = "config.default.toml documents every key")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, de};

use super::{Secret, Span};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub data: Data,
    pub log: Log,
    pub http: Http,
    pub api: Api,
    pub mqtt: Mqtt,
    pub broker: Broker,
    pub tenant: TenantSettings,
    pub record: Record,
    pub shutdown: Shutdown,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    pub dir: PathBuf,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    pub level: String,
    pub format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Auto,
    Text,
    Json,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    #[serde(deserialize_with = "address")]
    pub listen: SocketAddr,
    pub base_path: String,
    pub max_body: usize,
    pub request_timeout: Span,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Api {
    pub local_key: bool,
    pub keys: BTreeMap<String, CallerKey>,
}

/// A caller's secret, or several while one replaces another.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "expected a secret, or { secrets = [\"…\"] }")]
pub enum CallerKey {
    One(Secret),
    Several { secrets: Vec<Secret> },
}

impl CallerKey {
    #[must_use]
    pub fn secrets(&self) -> &[Secret] {
        match self {
            Self::One(secret) => std::slice::from_ref(secret),
            Self::Several { secrets } => secrets,
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mqtt {
    pub prefixes: Vec<String>,
    pub publish_timeout: Span,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Broker {
    #[serde(deserialize_with = "address_or_off")]
    pub listen: Option<SocketAddr>,
    pub max_connections: usize,
    pub max_connections_per_address: usize,
    pub max_packet_size: usize,
    pub connect_burst: u32,
    pub connect_rate: f64,
    pub handshake_timeout: Span,
    pub store_wait: Span,
    pub return_grace: Span,
    pub tls: BrokerTls,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerTls {
    #[serde(deserialize_with = "address_or_off")]
    pub listen: Option<SocketAddr>,
    #[serde(deserialize_with = "path_or_none")]
    pub certificate: Option<PathBuf>,
    #[serde(deserialize_with = "path_or_none")]
    pub key: Option<PathBuf>,
    #[serde(deserialize_with = "path_or_none")]
    pub client_ca: Option<PathBuf>,
    #[serde(deserialize_with = "path_or_none")]
    pub revocation_list: Option<PathBuf>,
    pub reload_interval: Span,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantSettings {
    #[serde(deserialize_with = "path_or_none")]
    pub static_file: Option<PathBuf>,
    pub default_org_id: String,
    pub default_account: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    pub batch_max: usize,
    pub tenant_deadline: Span,
    pub old_within: Span,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shutdown {
    pub grace: Span,
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse()
        .map_err(|_| de::Error::custom(format!("{text:?} is not an address and port")))
}

fn address_or_off<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|_| de::Error::custom(format!("{text:?} is not an address and port")))
}

fn path_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    Ok((!path.as_os_str().is_empty()).then_some(path))
}
