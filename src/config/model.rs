//! The configuration as types. What each key means is said in `config.default.toml`, once.
#![allow(missing_docs, reason = "config.default.toml documents every key")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, de};

use super::{HumanDuration, Secret};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub data: Data,
    pub log: Log,
    pub http: Http,
    pub api: Api,
    pub mqtt: Mqtt,
    pub kafka: Kafka,
    pub postgres: Postgres,
    pub broker: Broker,
    pub tenant: TenantConfig,
    pub record: Record,
    pub dead_letters: DeadLetters,
    pub inventory: Inventory,
    pub sources: Sources,
    pub updaters: Updaters,
    pub shutdown: Shutdown,
}

impl Config {
    /// The topics that this deployment uses.
    #[must_use]
    pub fn topics(&self) -> Vec<&str> {
        let mut topics = vec![
            self.kafka.ingress_topic.as_str(),
            self.kafka.answers_topic.as_str(),
        ];
        if self.inventory.enabled {
            topics.push(&self.inventory.topic);
        }
        topics
    }
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
    pub max_body_bytes: usize,
    pub request_timeout: HumanDuration,
    #[serde(deserialize_with = "address_or_off")]
    pub metrics_listen: Option<SocketAddr>,
    pub access_log: bool,
    pub tls: HttpTls,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpTls {
    #[serde(deserialize_with = "path_or_none")]
    pub certificate: Option<PathBuf>,
    #[serde(deserialize_with = "path_or_none")]
    pub key: Option<PathBuf>,
    pub reload_interval: HumanDuration,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Api {
    pub local_key: bool,
    pub trust_identity_header: bool,
    pub lookup_mode: LookupMode,
    pub rate_limit: ApiRateLimit,
    pub keys: BTreeMap<String, CallerKey>,
}

/// Requests a second, and at once.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiRateLimit {
    pub per_key: f64,
    pub per_key_burst: u32,
    pub per_org: f64,
    pub per_org_burst: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LookupMode {
    Strict,
    Relaxed,
}

/// A caller's secret, or several while one replaces another, and what they open.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a secret, or { secrets = [\"…\"], scopes = [\"tenant\", \"management\"] }"
)]
pub enum CallerKey {
    One(Secret),
    Detailed(DetailedKey),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetailedKey {
    secrets: Vec<Secret>,
    #[serde(default = "tenant_alone")]
    scopes: Vec<Scope>,
}

/// What a key opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// What is done for one organisation.
    Tenant,
    /// What is done for any.
    Management,
}

fn tenant_alone() -> Vec<Scope> {
    vec![Scope::Tenant]
}

impl CallerKey {
    #[must_use]
    pub fn secrets(&self) -> &[Secret] {
        match self {
            Self::One(secret) => std::slice::from_ref(secret),
            Self::Detailed(key) => &key.secrets,
        }
    }

    #[must_use]
    pub fn scopes(&self) -> &[Scope] {
        match self {
            Self::One(_) => &[Scope::Tenant],
            Self::Detailed(key) => &key.scopes,
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mqtt {
    #[serde(deserialize_with = "text_or_none")]
    pub url: Option<String>,
    pub client_id: String,
    #[serde(deserialize_with = "text_or_none")]
    pub shared_subscription_group: Option<String>,
    #[serde(deserialize_with = "pem_or_none")]
    pub ca: Option<Pem>,
    #[serde(deserialize_with = "path_or_none")]
    pub certificate: Option<PathBuf>,
    #[serde(deserialize_with = "path_or_none")]
    pub key: Option<PathBuf>,
    pub username: String,
    pub password: Secret,
    #[serde(deserialize_with = "path_or_none")]
    pub token_file: Option<PathBuf>,
    #[serde(deserialize_with = "path_or_none")]
    pub token_key: Option<PathBuf>,
    pub token_ttl: HumanDuration,
    pub max_packet_size: usize,
    pub prefixes: Vec<String>,
    pub handshake_topics: HandshakeTopics,
    pub publish_timeout: HumanDuration,
}

/// The topic segments of the handshake dialect: `{prefix}/{segment}/{client id}`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandshakeTopics {
    #[serde(rename = "in")]
    pub inbound: String,
    #[serde(rename = "out")]
    pub outbound: String,
    #[serde(deserialize_with = "text_or_none")]
    pub status: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kafka {
    #[serde(deserialize_with = "text_or_none")]
    pub brokers: Option<String>,
    pub security: KafkaSecurity,
    pub sasl_mechanism: SaslMechanism,
    pub username: String,
    pub password: Secret,
    #[serde(deserialize_with = "pem_or_none")]
    pub ca: Option<Pem>,
    pub ingress_topic: String,
    pub answers_topic: String,
    pub group: String,
    pub answers_group: String,
    pub session_timeout: HumanDuration,
    pub partitions: i32,
    pub replication: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KafkaSecurity {
    #[serde(alias = "PLAINTEXT")]
    Plaintext,
    #[serde(alias = "SSL")]
    Ssl,
    #[serde(alias = "SASL_PLAINTEXT")]
    SaslPlaintext,
    #[serde(alias = "SASL_SSL")]
    SaslSsl,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum SaslMechanism {
    #[serde(rename = "PLAIN")]
    Plain,
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Postgres {
    pub host: String,
    pub port: u16,
    pub database: String,
    pub user: String,
    pub password: Secret,
    pub tls: PostgresTls,
    #[serde(deserialize_with = "pem_or_none")]
    pub ca: Option<Pem>,
    pub max_connections: u32,
    pub acquire_timeout: HumanDuration,
    pub statement_timeout: HumanDuration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PostgresTls {
    Disable,
    Require,
    VerifyFull,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Broker {
    #[serde(deserialize_with = "address_or_off")]
    pub listen: Option<SocketAddr>,
    pub max_connections: usize,
    pub max_connections_per_address: usize,
    pub max_packet_size: usize,
    pub connect_limit: ConnectLimit,
    pub handshake_timeout: HumanDuration,
    pub ack_timeout: HumanDuration,
    pub reconnect_grace: HumanDuration,
    pub tls: BrokerTls,
}

/// Token bucket for the connection attempts of one client.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectLimit {
    pub burst: u32,
    pub per_second: f64,
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
    pub crl: Option<PathBuf>,
    pub reload_interval: HumanDuration,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantConfig {
    #[serde(deserialize_with = "text_or_none")]
    pub gateway_url: Option<String>,
    #[serde(deserialize_with = "pem_or_none")]
    pub gateway_ca: Option<Pem>,
    pub gateway_timeout: HumanDuration,
    pub gateway_max_concurrency: usize,
    pub cache_ttl: HumanDuration,
    pub negative_cache_ttl: HumanDuration,
    pub breaker_probe_interval: HumanDuration,
    pub allow_mass_loss: bool,
    #[serde(deserialize_with = "path_or_none")]
    pub static_file: Option<PathBuf>,
    pub default_org_id: String,
    pub default_account: String,
    #[serde(deserialize_with = "text_or_none")]
    pub translator_url: Option<String>,
    pub translator_timeout: HumanDuration,
    #[serde(deserialize_with = "path_or_none")]
    pub translator_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    pub max_batch_size: usize,
    pub tenant_lookup_timeout: HumanDuration,
    pub stale_online_window: HumanDuration,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadLetters {
    pub max_per_client: u32,
    pub max_total: u32,
    pub retention: HumanDuration,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inventory {
    pub enabled: bool,
    pub topic: String,
    pub file_max_bytes: u64,
    pub max_files: u32,
    pub stale_after: HumanDuration,
    pub include_handshake_hosts: bool,
    pub delivery_timeout: HumanDuration,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sources {
    #[serde(deserialize_with = "text_or_none")]
    pub url: Option<String>,
    pub timeout: HumanDuration,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Updaters {
    pub interval: HumanDuration,
    pub disconnected_retention: HumanDuration,
    pub tenant_retry_interval: HumanDuration,
    pub tenant_max_attempts: u32,
    pub inventory_refresh_margin: HumanDuration,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shutdown {
    pub grace_period: HumanDuration,
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

/// Certificates: a file, or the text itself where the platform hands it over so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pem {
    File(PathBuf),
    Text(String),
}

impl Pem {
    /// The text, read from the file if it is one.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&self) -> std::io::Result<String> {
        match self {
            Self::File(path) => std::fs::read_to_string(path),
            Self::Text(text) => Ok(text.clone()),
        }
    }
}

fn pem_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Pem>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(match text.trim_start() {
        "" => None,
        pem if pem.starts_with("-----BEGIN") => Some(Pem::Text(pem.to_owned())),
        path => Some(Pem::File(path.into())),
    })
}

fn text_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok((!text.is_empty()).then_some(text))
}

fn path_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    Ok((!path.as_os_str().is_empty()).then_some(path))
}
