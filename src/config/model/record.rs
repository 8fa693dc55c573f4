//! Settings of the section `[record]`.

use serde::Deserialize;

use crate::config::HumanDuration;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    pub max_batch_size: usize,
    pub tenant_lookup_timeout: HumanDuration,
    pub stale_online_window: HumanDuration,
}
