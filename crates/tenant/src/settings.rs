//! Settings of the section `[tenant]`.
#![allow(missing_docs, reason = "config.default.toml documents every setting")]

use std::path::PathBuf;

use serde::Deserialize;

use service::settings::deserialize::{optional_path, optional_pem, optional_text};
use service::settings::{HumanDuration, InvalidValue, PemSource, require_nonzero_duration};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantSettings {
    #[serde(deserialize_with = "optional_text")]
    pub gateway_url: Option<String>,
    #[serde(deserialize_with = "optional_pem")]
    pub gateway_ca: Option<PemSource>,
    pub gateway_timeout: HumanDuration,
    pub gateway_max_concurrency: usize,
    pub cache_ttl: HumanDuration,
    pub negative_cache_ttl: HumanDuration,
    pub breaker_probe_interval: HumanDuration,
    pub allow_mass_loss: bool,
    #[serde(deserialize_with = "optional_path")]
    pub static_file: Option<PathBuf>,
    pub default_org_id: String,
    pub default_account: String,
    #[serde(deserialize_with = "optional_text")]
    pub translator_url: Option<String>,
    pub translator_timeout: HumanDuration,
    #[serde(deserialize_with = "optional_path")]
    pub translator_file: Option<PathBuf>,
}

impl TenantSettings {
    /// Checks values that have the right type but are not allowed.
    ///
    /// # Errors
    /// When a value is not allowed. Only the first problem is reported.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        require_nonzero_duration("tenant.translator_timeout", self.translator_timeout)
    }
}
