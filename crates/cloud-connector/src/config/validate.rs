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
    }
    config.broker.validate()?;
    config.client_budget.validate()?;
    validate_kafka_requires_external_broker(config)?;
    config.kafka.validate()?;
    config.record.validate()?;
    config.postgres.validate()?;
    config.tenant.validate()?;
    config.updaters.validate()?;
    config.shutdown.validate()
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
