//! Settings of the section `[shutdown]`.

use serde::Deserialize;

use crate::config::HumanDuration;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shutdown {
    pub grace_period: HumanDuration,
}
