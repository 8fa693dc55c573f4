//! Settings of the section `[kafka]`.
#![allow(missing_docs, reason = "config.default.toml documents every setting")]

use serde::Deserialize;

use service::settings::deserialize::{optional_pem, optional_text};
use service::settings::{
    HumanDuration, InvalidValue, PemSource, SecretString, require_nonzero_duration,
};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KafkaSettings {
    #[serde(deserialize_with = "optional_text")]
    pub brokers: Option<String>,
    pub security: KafkaSecurity,
    pub sasl_mechanism: SaslMechanism,
    pub username: String,
    pub password: SecretString,
    #[serde(deserialize_with = "optional_pem")]
    pub ca: Option<PemSource>,
    pub ingress_topic: String,
    pub answers_topic: String,
    pub slow_topic: String,
    pub group: String,
    pub answers_group: String,
    pub slow_group: String,
    pub session_timeout: HumanDuration,
    pub partitions: i32,
    pub replication: i32,
}

impl KafkaSettings {
    /// Checks values that have the right type but are not allowed.
    ///
    /// # Errors
    /// When a value is not allowed. Only the first problem is reported.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        if self.partitions < 1 || self.replication < 1 {
            return Err(InvalidValue::new(
                "kafka.partitions",
                "a topic needs at least one partition and one replica",
                "set kafka.partitions and kafka.replication to 1 or more",
            ));
        }
        // The messages of a client keep their order only if the topics differ.
        if [&self.ingress_topic, &self.answers_topic].contains(&&self.slow_topic) {
            return Err(InvalidValue::new(
                "kafka.slow_topic",
                format!("{:?} is also the name of another topic", self.slow_topic),
                "use different names for kafka.ingress_topic, kafka.answers_topic and \
                 kafka.slow_topic",
            ));
        }
        require_nonzero_duration("kafka.session_timeout", self.session_timeout)
    }
}

/// Security protocol of Kafka connections. The platform's configuration file (`ACG_CONFIG`) spells
/// the values in upper case, such as `SASL_SSL`.
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
