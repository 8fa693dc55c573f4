//! Settings of the sections `[dead_letters]`, `[events]` and `[messages]`.
#![allow(missing_docs, reason = "config.default.toml documents every setting")]

use serde::Deserialize;

use service::settings::{HumanDuration, InvalidValue, require_nonzero_duration};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadLetterSettings {
    pub max_per_client: u32,
    pub max_total: u32,
    pub retention: HumanDuration,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventSettings {
    pub enabled: bool,
    pub retention: HumanDuration,
    pub max_streams: usize,
    pub forward: bool,
    pub kafka_topic: String,
}

impl EventSettings {
    /// Checks values that have the right type but are not allowed.
    ///
    /// # Errors
    /// When a value is not allowed. Only the first problem is reported.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        require_nonzero_duration("events.retention", self.retention)?;
        if self.max_streams == 0 {
            return Err(InvalidValue::new(
                "events.max_streams",
                "0 would reject all streams",
                "set it to 1 or more, or set events.enabled to false",
            ));
        }
        if self.forward && self.kafka_topic.is_empty() {
            return Err(InvalidValue::new(
                "events.kafka_topic",
                "it is empty, but events.forward is true",
                "set the name of a topic, or set events.forward to false",
            ));
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageSettings {
    pub retention: HumanDuration,
    pub max_per_organization: u64,
    pub lease: HumanDuration,
}

impl MessageSettings {
    /// Checks values that have the right type but are not allowed.
    ///
    /// # Errors
    /// When a value is not allowed. Only the first problem is reported.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        require_nonzero_duration("messages.retention", self.retention)?;
        if self.max_per_organization == 0 {
            return Err(InvalidValue::new(
                "messages.max_per_organization",
                "0 would delete the record of each message at once",
                "set it to 1 or more",
            ));
        }
        if self.lease.get().as_secs() == 0 {
            return Err(InvalidValue::new(
                "messages.lease",
                "it is shorter than a second",
                "set it to a few seconds more than mqtt.publish_timeout, such as \"15s\"",
            ));
        }
        Ok(())
    }
}
