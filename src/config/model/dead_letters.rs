//! Settings of the section `[dead_letters]`.

use serde::Deserialize;

use crate::config::HumanDuration;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadLetters {
    pub max_per_client: u32,
    pub max_total: u32,
    pub retention: HumanDuration,
}
