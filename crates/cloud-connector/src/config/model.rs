//! The configuration as Rust types. Each component has the struct of its section of
//! `config.default.toml`. The structs of `[data]` and `[shutdown]` are here, because these settings
//! belong to the whole process.
//!
//! The comments in `config.default.toml` document the settings, so the fields here have no
//! comments.
#![allow(missing_docs, reason = "config.default.toml documents every setting")]

use std::path::PathBuf;

use serde::Deserialize;

use api::{ApiSettings, HttpSettings};
use broker::BrokerSettings;
use integrations::inventory::InventorySettings;
use integrations::sources::SourcesSettings;
use jobs::{JobSettings, PresenceSettings};
use kafka::KafkaSettings;
use mqtt::MqttSettings;
use pipeline::record::RecordSettings;
use service::settings::{HumanDuration, InvalidValue, require_nonzero_duration};
use service::{ClientBudgetSettings, LogSettings};
use store::{DeadLetterSettings, EventSettings, MessageSettings};
use store_postgres::PostgresSettings;
use tenant::TenantSettings;

/// All settings.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub data: DataSettings,
    pub log: LogSettings,
    pub http: HttpSettings,
    pub api: ApiSettings,
    pub mqtt: MqttSettings,
    pub kafka: KafkaSettings,
    pub postgres: PostgresSettings,
    pub broker: BrokerSettings,
    pub client_budget: ClientBudgetSettings,
    pub tenant: TenantSettings,
    pub record: RecordSettings,
    pub dead_letters: DeadLetterSettings,
    pub events: EventSettings,
    pub messages: MessageSettings,
    pub inventory: InventorySettings,
    pub sources: SourcesSettings,
    pub updaters: JobSettings,
    pub presence: PresenceSettings,
    pub shutdown: ShutdownSettings,
}

impl Config {
    /// Returns the names of the Kafka topics that this configuration uses.
    #[must_use]
    pub fn kafka_topics(&self) -> Vec<&str> {
        let mut topics = vec![
            self.kafka.ingress_topic.as_str(),
            self.kafka.answers_topic.as_str(),
            self.kafka.slow_topic.as_str(),
        ];
        if self.inventory.enabled {
            topics.push(&self.inventory.topic);
        }
        if self.forwards_events() {
            topics.push(&self.events.kafka_topic);
        }
        topics
    }

    /// Returns whether events are forwarded to Kafka.
    #[must_use]
    pub fn forwards_events(&self) -> bool {
        let is_distributed = self.kafka.brokers.is_some() && !self.postgres.host.is_empty();
        is_distributed && self.events.enabled && self.events.forward
    }
}

/// Settings of the section `[data]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSettings {
    pub dir: PathBuf,
}

/// Settings of the section `[shutdown]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShutdownSettings {
    pub grace_period: HumanDuration,
}

impl ShutdownSettings {
    /// Checks values that have the right type but are not allowed.
    ///
    /// # Errors
    /// When a value is not allowed. Only the first problem is reported.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        require_nonzero_duration("shutdown.grace_period", self.grace_period)
    }
}
