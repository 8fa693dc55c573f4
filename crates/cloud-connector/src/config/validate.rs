//! Rejects values that have the right type but are not allowed.
//!
//! Each settings struct checks its own values. This module contains the checks that need two
//! sections.

use super::Config;
use service::settings::InvalidValue;

pub(super) fn validate(config: &Config) -> Result<(), InvalidValue> {
    config.http.validate()?;
    config.api.validate()?;
    config.mqtt.validate()?;
    if config.mqtt.url.is_none() {
        config.broker.validate_for_embedded_broker()?;
        validate_packet_size(config)?;
    }
    config.broker.validate()?;
    config.client_budget.validate()?;
    validate_kafka_requires_external_broker(config)?;
    config.kafka.validate()?;
    config.record.validate()?;
    config.postgres.validate()?;
    config.tenant.validate()?;
    config.updaters.validate()?;
    config.presence.validate()?;
    config.events.validate()?;
    config.messages.validate()?;
    validate_message_lease(config)?;
    config.shutdown.validate()
}

/// Checks that the broker accepts the responses to the largest messages. The broker closes the connection
/// of a client that sends a larger packet, and the client then reconnects and sends it again.
fn validate_packet_size(config: &Config) -> Result<(), InvalidValue> {
    let min_size = config.http.max_body_bytes.saturating_mul(2);
    if config.broker.max_packet_size < min_size {
        return Err(InvalidValue::new(
            "broker.max_packet_size",
            format!(
                "{} is less than twice http.max_body_bytes, so a client could not send the \
                 response to a large message",
                config.broker.max_packet_size
            ),
            format!("set it to at least {min_size} bytes, or lower http.max_body_bytes"),
        ));
    }
    Ok(())
}

/// Checks that a process can report the result of a message before its lease expires.
fn validate_message_lease(config: &Config) -> Result<(), InvalidValue> {
    if config.messages.lease.get() <= config.mqtt.publish_timeout.get() {
        return Err(InvalidValue::new(
            "messages.lease",
            "it is not longer than mqtt.publish_timeout, so messages could fail while they are sent",
            "set it to a few seconds more than mqtt.publish_timeout",
        ));
    }
    Ok(())
}

fn validate_kafka_requires_external_broker(config: &Config) -> Result<(), InvalidValue> {
    if config.kafka.brokers.is_some() && config.mqtt.url.is_none() {
        return Err(InvalidValue::new(
            "kafka.brokers",
            "the embedded broker does not use Kafka",
            "set mqtt.url to an external broker, or set kafka.brokers to \"\"",
        ));
    }
    Ok(())
}
