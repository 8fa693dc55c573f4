//! Settings of the section `[postgres]`.
#![allow(missing_docs, reason = "config.default.toml documents every setting")]

use serde::Deserialize;

use service::settings::deserialize::optional_pem;
use service::settings::{
    HumanDuration, InvalidValue, PemSource, SecretString, require_nonzero_connection_limit,
    require_nonzero_duration,
};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostgresSettings {
    pub host: String,
    pub port: u16,
    pub database: String,
    pub user: String,
    pub password: SecretString,
    pub tls: PostgresTls,
    #[serde(deserialize_with = "optional_pem")]
    pub ca: Option<PemSource>,
    pub max_connections: u32,
    pub acquire_timeout: HumanDuration,
    pub statement_timeout: HumanDuration,
    pub response_timeout: HumanDuration,
}

impl PostgresSettings {
    /// Checks values that have the right type but are not allowed.
    ///
    /// # Errors
    /// When a value is not allowed. Only the first problem is reported.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        require_nonzero_duration("postgres.acquire_timeout", self.acquire_timeout)?;
        require_nonzero_duration("postgres.statement_timeout", self.statement_timeout)?;
        if self.response_timeout.get() <= self.statement_timeout.get() {
            return Err(InvalidValue::new(
                "postgres.response_timeout",
                "the duration must be longer than postgres.statement_timeout",
                "set a longer duration, such as \"15s\"",
            ));
        }
        require_nonzero_connection_limit("postgres.max_connections", self.max_connections as usize)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PostgresTls {
    Disable,
    Require,
    VerifyFull,
}
