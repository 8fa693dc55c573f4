//! Settings of the section `[updaters]`.

use serde::Deserialize;

use crate::config::HumanDuration;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Updaters {
    pub interval: HumanDuration,
    pub disconnected_retention: HumanDuration,
    pub tenant_retry_interval: HumanDuration,
    pub tenant_max_attempts: u32,
    pub inventory_refresh_margin: HumanDuration,
}
