//! The configuration as Rust types, one file per section of `config.default.toml`.
//!
//! The comments in `config.default.toml` document the settings, so the fields here have no
//! comments. Checks of values belong in `config::validate`.
#![allow(missing_docs, reason = "config.default.toml documents every setting")]

mod api;
mod broker;
mod data_dir;
mod dead_letters;
mod deserialize;
mod http;
mod inventory;
mod kafka;
mod log;
mod mqtt;
mod pem;
mod postgres;
mod record;
mod shutdown;
mod sources;
mod tenant;
mod updaters;

pub use api::{Api, ApiRateLimit, CallerKey, LookupMode, Scope};
pub use broker::{Broker, BrokerTls, ConnectLimit};
pub use data_dir::Data;
pub use dead_letters::DeadLetters;
pub use http::{Http, HttpTls};
pub use inventory::Inventory;
pub use kafka::{Kafka, KafkaSecurity, SaslMechanism};
pub use log::{Log, LogFormat};
pub use mqtt::{HandshakeTopics, Mqtt};
pub use pem::PemSource;
pub use postgres::{Postgres, PostgresTls};
pub use record::Record;
pub use shutdown::Shutdown;
pub use sources::Sources;
pub use tenant::TenantConfig;
pub use updaters::Updaters;

use serde::Deserialize;

/// All settings.
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
    /// Returns the names of the Kafka topics that this configuration uses.
    #[must_use]
    pub fn kafka_topics(&self) -> Vec<&str> {
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
