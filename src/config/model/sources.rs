//! Settings of the section `[sources]`.

use serde::Deserialize;

use super::deserialize::optional_text;
use crate::config::HumanDuration;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sources {
    #[serde(deserialize_with = "optional_text")]
    pub url: Option<String>,
    pub timeout: HumanDuration,
}
