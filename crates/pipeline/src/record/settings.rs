//! Settings of the section `[record]`.
#![allow(missing_docs, reason = "config.default.toml documents every setting")]

use serde::Deserialize;

use service::settings::{HumanDuration, InvalidValue};

const MAX_BATCH_SIZE: usize = 1000;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordSettings {
    pub max_batch_size: usize,
    pub tenant_lookup_timeout: HumanDuration,
    pub stale_online_window: HumanDuration,
}

impl RecordSettings {
    /// Checks values that have the right type but are not allowed.
    ///
    /// # Errors
    /// When a value is not allowed. Only the first problem is reported.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        if !(1..=MAX_BATCH_SIZE).contains(&self.max_batch_size) {
            return Err(InvalidValue::new(
                "record.max_batch_size",
                format!("{} is out of range", self.max_batch_size),
                format!("set it to 1 to {MAX_BATCH_SIZE}"),
            ));
        }
        Ok(())
    }
}
