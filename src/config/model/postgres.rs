//! Settings of the section `[postgres]`.

use serde::Deserialize;

use super::PemSource;
use super::deserialize::optional_pem;
use crate::config::{HumanDuration, Secret};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Postgres {
    pub host: String,
    pub port: u16,
    pub database: String,
    pub user: String,
    pub password: Secret,
    pub tls: PostgresTls,
    #[serde(deserialize_with = "optional_pem")]
    pub ca: Option<PemSource>,
    pub max_connections: u32,
    pub acquire_timeout: HumanDuration,
    pub statement_timeout: HumanDuration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PostgresTls {
    Disable,
    Require,
    VerifyFull,
}
