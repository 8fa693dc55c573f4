//! Configuration that all Kafka clients have in common, and errors of Kafka clients.

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::{ClientConfig, ClientContext};

use super::{KafkaSecurity, KafkaSettings, SaslMechanism};
use service::LogThrottle;
use service::settings::ExposeSecret as _;

/// Maximum size of a Kafka message. The Mosquitto configuration in `deploy/` limits payloads to
/// half of this size. Therefore all messages from Mosquitto fit into a Kafka message.
pub(super) const MAX_MESSAGE_BYTES: &str = "2097152";

/// A Kafka client cannot be created, or the cluster rejected a request.
#[derive(Debug, thiserror::Error)]
pub enum KafkaError {
    /// A configuration value is invalid.
    #[error("kafka.{setting_name}: {problem}")]
    InvalidSetting {
        /// Name of the setting in the section `[kafka]`.
        setting_name: &'static str,
        /// Description of the problem.
        problem: String,
    },
    /// The cluster cannot be reached or rejected the request.
    #[error("kafka: {problem}; {hint}")]
    RequestFailed {
        /// Description of the problem.
        problem: String,
        /// What the operator should check.
        hint: &'static str,
    },
}

/// Logs errors of librdkafka, at most one per second. While the cluster is unreachable, librdkafka
/// reports the same error many times per second.
#[derive(Clone, Copy, Default)]
pub(super) struct ErrorLogger;

impl ClientContext for ErrorLogger {
    fn log(&self, _level: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(facility, message, "librdkafka");
    }

    fn error(&self, error: rdkafka::error::KafkaError, reason: &str) {
        static LOG_THROTTLE: LogThrottle = LogThrottle::new();
        if LOG_THROTTLE.should_log() {
            tracing::warn!(%error, reason, "Kafka error");
        }
    }
}

/// Returns the configuration that producers, consumers and admin clients have in common.
pub(super) fn common_config(kafka: &KafkaSettings) -> Result<ClientConfig, KafkaError> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", kafka.brokers.as_deref().unwrap_or(""))
        .set("client.id", "cloud-connector")
        .set("security.protocol", security_protocol(kafka.security))
        // Maximum delay between reconnect attempts. With a longer delay, a broker that has
        // restarted would stay unused for longer.
        .set("reconnect.backoff.max.ms", "2000")
        .set("socket.keepalive.enable", "true");
    if let Some(ca) = &kafka.ca {
        let pem = ca.read().map_err(|error| KafkaError::InvalidSetting {
            setting_name: "ca",
            problem: format!("cannot read the file: {error}; check the path"),
        })?;
        config.set("ssl.ca.pem", pem);
    }
    if matches!(
        kafka.security,
        KafkaSecurity::SaslPlaintext | KafkaSecurity::SaslSsl
    ) {
        config
            .set("sasl.mechanisms", sasl_mechanism(kafka.sasl_mechanism))
            .set("sasl.username", &kafka.username)
            .set("sasl.password", kafka.password.expose_secret());
    }
    Ok(config)
}

fn security_protocol(security: KafkaSecurity) -> &'static str {
    match security {
        KafkaSecurity::Plaintext => "plaintext",
        KafkaSecurity::Ssl => "ssl",
        KafkaSecurity::SaslPlaintext => "sasl_plaintext",
        KafkaSecurity::SaslSsl => "sasl_ssl",
    }
}

fn sasl_mechanism(mechanism: SaslMechanism) -> &'static str {
    match mechanism {
        SaslMechanism::Plain => "PLAIN",
        SaslMechanism::ScramSha256 => "SCRAM-SHA-256",
        SaslMechanism::ScramSha512 => "SCRAM-SHA-512",
    }
}

/// Returns the error for settings that librdkafka rejects when it creates a client.
pub(super) fn rejected_settings_error(error: &rdkafka::error::KafkaError) -> KafkaError {
    KafkaError::InvalidSetting {
        setting_name: "security",
        problem: format!("cannot create a Kafka client: {error}"),
    }
}
