//! Settings of the sections `[updaters]` and `[presence]`.
#![allow(missing_docs, reason = "config.default.toml documents every setting")]

use serde::Deserialize;

use service::settings::{HumanDuration, InvalidValue, require_nonzero_duration};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSettings {
    pub interval: HumanDuration,
    pub disconnected_retention: HumanDuration,
    pub tenant_retry_interval: HumanDuration,
    pub tenant_max_attempts: u32,
    pub inventory_refresh_margin: HumanDuration,
}

impl JobSettings {
    /// Checks values that have the right type but are not allowed.
    ///
    /// # Errors
    /// When a value is not allowed. Only the first problem is reported.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        require_nonzero_duration("updaters.interval", self.interval)
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PresenceSettings {
    pub history_retention: HumanDuration,
    pub history_per_client: u32,
    pub last_seen_interval: HumanDuration,
    pub silent_after: HumanDuration,
    pub ping_timeout: HumanDuration,
    pub pings_per_second: u32,
    pub broker_restart_wait: HumanDuration,
    pub sweep_client_id: String,
}

impl PresenceSettings {
    /// Checks values that have the right type but are not allowed.
    ///
    /// # Errors
    /// When a value is not allowed. Only the first problem is reported.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        require_nonzero_duration("presence.ping_timeout", self.ping_timeout)?;
        if !(1..=10_000).contains(&self.pings_per_second) {
            return Err(InvalidValue::new(
                "presence.pings_per_second",
                format!("{} is not allowed", self.pings_per_second),
                "use a value from 1 to 10000",
            ));
        }
        if self.sweep_client_id.is_empty() {
            return Err(InvalidValue::new(
                "presence.sweep_client_id",
                "is empty",
                "remove the setting to use the default",
            ));
        }
        Ok(())
    }
}
