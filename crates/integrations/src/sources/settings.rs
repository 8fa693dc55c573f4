//! Settings of the section `[sources]`.
#![allow(missing_docs, reason = "config.default.toml documents every setting")]

use serde::Deserialize;

use service::settings::HumanDuration;
use service::settings::deserialize::optional_text;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourcesSettings {
    #[serde(deserialize_with = "optional_text")]
    pub url: Option<String>,
    pub timeout: HumanDuration,
}
