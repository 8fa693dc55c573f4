//! Settings of the section `[dead_letters]`.
#![allow(missing_docs, reason = "config.default.toml documents every setting")]

use serde::Deserialize;

use service::settings::HumanDuration;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadLetterSettings {
    pub max_per_client: u32,
    pub max_total: u32,
    pub retention: HumanDuration,
}
