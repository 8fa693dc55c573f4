//! What every connection to Kafka is made with.

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::{ClientConfig, ClientContext};

use crate::config::{Kafka, KafkaSecurity, SaslMechanism};
use crate::telemetry::metrics::LogThrottle;

/// Kafka cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KafkaError {
    /// A setting cannot work.
    #[error("kafka.{key}: {problem}")]
    Setting {
        /// The key.
        key: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The cluster does not answer, or refuses.
    #[error("kafka: {problem}; {cure}")]
    Refused {
        /// What it says.
        problem: String,
        /// What to look at.
        cure: &'static str,
    },
}

/// What the crate complains of, said now and then: it repeats itself many times a second while the
/// cluster is away.
#[derive(Clone, Copy, Default)]
pub(super) struct ErrorLogger;

impl ClientContext for ErrorLogger {
    fn log(&self, _level: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(facility, message, "librdkafka");
    }

    fn error(&self, error: rdkafka::error::KafkaError, reason: &str) {
        static SAID: LogThrottle = LogThrottle::new();
        if SAID.now() {
            tracing::warn!(%error, reason, "the queue is in trouble");
        }
    }
}

/// Settings that producer, consumer and administration share.
pub(super) fn common(kafka: &Kafka) -> Result<ClientConfig, KafkaError> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", kafka.brokers.as_deref().unwrap_or(""))
        .set("client.id", "cloud-connector")
        .set("security.protocol", security(kafka.security))
        // A broker that comes back is found soon.
        .set("reconnect.backoff.max.ms", "2000")
        .set("socket.keepalive.enable", "true");
    if let Some(ca) = &kafka.ca {
        let pem = ca.read().map_err(|error| KafkaError::Setting {
            key: "ca",
            problem: format!("cannot be read: {error}; check the path"),
        })?;
        config.set("ssl.ca.pem", pem);
    }
    if matches!(
        kafka.security,
        KafkaSecurity::SaslPlaintext | KafkaSecurity::SaslSsl
    ) {
        config
            .set("sasl.mechanisms", mechanism(kafka.sasl_mechanism))
            .set("sasl.username", &kafka.username)
            .set("sasl.password", kafka.password.expose());
    }
    Ok(config)
}

fn security(security: KafkaSecurity) -> &'static str {
    match security {
        KafkaSecurity::Plaintext => "plaintext",
        KafkaSecurity::Ssl => "ssl",
        KafkaSecurity::SaslPlaintext => "sasl_plaintext",
        KafkaSecurity::SaslSsl => "sasl_ssl",
    }
}

fn mechanism(mechanism: SaslMechanism) -> &'static str {
    match mechanism {
        SaslMechanism::Plain => "PLAIN",
        SaslMechanism::ScramSha256 => "SCRAM-SHA-256",
        SaslMechanism::ScramSha512 => "SCRAM-SHA-512",
    }
}

/// A client that its crate refuses to make: a setting that librdkafka does not like.
pub(super) fn unusable(error: &rdkafka::error::KafkaError) -> KafkaError {
    KafkaError::Setting {
        key: "security",
        problem: format!("the client cannot be made: {error}"),
    }
}
