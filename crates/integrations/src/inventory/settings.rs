//! Settings of the section `[inventory]`.
#![allow(missing_docs, reason = "config.default.toml documents every setting")]

use serde::Deserialize;

use service::settings::HumanDuration;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InventorySettings {
    pub enabled: bool,
    pub topic: String,
    pub file_max_bytes: u64,
    pub max_files: u32,
    pub stale_after: HumanDuration,
    pub include_handshake_hosts: bool,
    pub delivery_timeout: HumanDuration,
}
