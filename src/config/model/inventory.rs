//! Settings of the section `[inventory]`.

use serde::Deserialize;

use crate::config::HumanDuration;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inventory {
    pub enabled: bool,
    pub topic: String,
    pub file_max_bytes: u64,
    pub max_files: u32,
    pub stale_after: HumanDuration,
    pub include_handshake_hosts: bool,
    pub delivery_timeout: HumanDuration,
}
