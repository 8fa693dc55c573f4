//! Settings of the sections `[api]` and `[http]`.
#![allow(missing_docs, reason = "config.default.toml documents every setting")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

use crate::client_address::IpRange;
use service::settings::deserialize::{optional_path, optional_socket_addr, socket_addr};
use service::settings::{
    ExposeSecret as _, HumanDuration, InvalidValue, SecretString, require_nonzero_duration,
};

/// Minimum length of a secret. A shorter secret could be guessed.
const MIN_SECRET_CHARS: usize = 16;
const MIN_BODY_BYTES: usize = 1024;
const MIN_RESPONSE_BYTES: usize = 64 * 1024;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiSettings {
    pub local_key: bool,
    pub trust_identity_header: bool,
    pub lookup_mode: LookupMode,
    pub track_all: bool,
    pub max_response_bytes: usize,
    pub max_large_responses: usize,
    pub rate_limit: ApiRateLimit,
    pub auth_failure_limit: AuthFailureLimit,
    pub keys: BTreeMap<String, CallerKey>,
}

impl ApiSettings {
    /// Checks values that have the right type but are not allowed.
    ///
    /// # Errors
    /// When a value is not allowed. Only the first problem is reported.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        if self.max_response_bytes < MIN_RESPONSE_BYTES {
            return Err(InvalidValue::new(
                "api.max_response_bytes",
                format!("{} bytes are too few for a page", self.max_response_bytes),
                format!("set it to {MIN_RESPONSE_BYTES} or more"),
            ));
        }
        if self.max_large_responses == 0 {
            return Err(InvalidValue::new(
                "api.max_large_responses",
                "0 would reject all large responses",
                "set it to 1 or more",
            ));
        }
        self.rate_limit.validate()?;
        self.auth_failure_limit.validate()?;
        self.validate_keys()
    }

    fn validate_keys(&self) -> Result<(), InvalidValue> {
        for (caller, key) in &self.keys {
            let invalid_key = |problem: &str, hint: &str| {
                Err(InvalidValue::new("api.keys", problem, hint).with_user_chosen_name(caller))
            };
            if key.secrets().is_empty() {
                return invalid_key("the list of secrets is empty", "add a secret");
            }
            if key.scopes().is_empty() {
                return invalid_key(
                    "no scope is set, so the key would authorize nothing",
                    "add \"tenant\", \"management\" or both; without scopes the key has \"tenant\"",
                );
            }
            for secret in key.secrets() {
                if secret.expose_secret().chars().count() < MIN_SECRET_CHARS {
                    return invalid_key(
                        "the secret is too short",
                        &format!(
                            "use at least {MIN_SECRET_CHARS} characters, for example from \
                             `openssl rand -hex 32`"
                        ),
                    );
                }
            }
        }
        Ok(())
    }
}

/// Rate limits in requests per second. A rate of 0 means no limit.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiRateLimit {
    pub per_key: f64,
    pub per_key_burst: u32,
    pub per_org: f64,
    pub per_org_burst: u32,
}

impl ApiRateLimit {
    fn validate(&self) -> Result<(), InvalidValue> {
        for (rate_setting, rate, burst_setting, burst) in [
            (
                "api.rate_limit.per_key",
                self.per_key,
                "api.rate_limit.per_key_burst",
                self.per_key_burst,
            ),
            (
                "api.rate_limit.per_org",
                self.per_org,
                "api.rate_limit.per_org_burst",
                self.per_org_burst,
            ),
        ] {
            if !(rate.is_finite() && rate >= 0.0) {
                return Err(InvalidValue::new(
                    rate_setting,
                    format!("{rate} is not a valid rate"),
                    "set it to the requests per second, or to 0 for no limit",
                ));
            }
            if rate > 0.0 && burst == 0 {
                return Err(InvalidValue::new(
                    burst_setting,
                    format!("0 would reject all requests, because {rate_setting} is set"),
                    "set it to 1 or more",
                ));
            }
        }
        Ok(())
    }
}

/// Limit on the failed authentications from one address, and for one claimed caller name.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthFailureLimit {
    pub burst: u32,
    pub per_second: f64,
}

impl AuthFailureLimit {
    fn validate(&self) -> Result<(), InvalidValue> {
        if self.burst == 0 {
            return Err(InvalidValue::new(
                "api.auth_failure_limit.burst",
                "0 would hide the reason of the first failure from callers",
                "set it to 1 or more",
            ));
        }
        if !(self.per_second.is_finite() && self.per_second > 0.0) {
            return Err(InvalidValue::new(
                "api.auth_failure_limit.per_second",
                format!("{} is not a valid rate", self.per_second),
                "set it to a number greater than 0, such as 1.0",
            ));
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LookupMode {
    Strict,
    Relaxed,
}

/// The pre-shared key of an API caller: a single secret, or several secrets with scopes.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a secret, or { secrets = [\"…\"], scopes = [\"tenant\", \"management\"] }"
)]
pub enum CallerKey {
    SingleSecret(SecretString),
    Detailed(DetailedKey),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetailedKey {
    secrets: Vec<SecretString>,
    #[serde(default = "default_scopes")]
    scopes: Vec<Scope>,
}

/// A group of endpoints that a key authorizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Endpoints that act for one organization.
    Tenant,
    /// Endpoints that act for any organization.
    Management,
}

fn default_scopes() -> Vec<Scope> {
    vec![Scope::Tenant]
}

impl CallerKey {
    #[must_use]
    pub fn secrets(&self) -> &[SecretString] {
        match self {
            Self::SingleSecret(secret) => std::slice::from_ref(secret),
            Self::Detailed(key) => &key.secrets,
        }
    }

    #[must_use]
    pub fn scopes(&self) -> &[Scope] {
        match self {
            Self::SingleSecret(_) => &[Scope::Tenant],
            Self::Detailed(key) => &key.scopes,
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSettings {
    #[serde(deserialize_with = "socket_addr")]
    pub listen: SocketAddr,
    pub base_path: String,
    pub max_body_bytes: usize,
    pub request_timeout: HumanDuration,
    #[serde(deserialize_with = "optional_socket_addr")]
    pub metrics_listen: Option<SocketAddr>,
    pub access_log: bool,
    pub trusted_proxies: Vec<IpRange>,
    pub tls: HttpTlsSettings,
}

impl HttpSettings {
    /// Checks values that have the right type but are not allowed.
    ///
    /// # Errors
    /// When a value is not allowed. Only the first problem is reported.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        let path = &self.base_path;
        let is_plain_path = path.starts_with('/')
            && !path.ends_with('/')
            && path
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.'));
        if !is_plain_path {
            return Err(InvalidValue::new(
                "http.base_path",
                format!("{path:?} is not a valid path"),
                "start it with / and do not end it with /, as in \"/api/cloud-connector\"",
            ));
        }
        if self.max_body_bytes < MIN_BODY_BYTES {
            return Err(InvalidValue::new(
                "http.max_body_bytes",
                format!("{} bytes are too few for a message", self.max_body_bytes),
                format!("set it to {MIN_BODY_BYTES} or more"),
            ));
        }
        let tls = &self.tls;
        let missing_and_present = match (&tls.certificate, &tls.key) {
            (Some(_), None) => Some(("http.tls.key", "http.tls.certificate")),
            (None, Some(_)) => Some(("http.tls.certificate", "http.tls.key")),
            _ => None,
        };
        if let Some((missing, present)) = missing_and_present {
            return Err(InvalidValue::new(
                missing,
                format!("it is not set, but {present} is set"),
                "set both settings for HTTPS, or neither of them for HTTP",
            ));
        }
        require_nonzero_duration("http.request_timeout", self.request_timeout)?;
        require_nonzero_duration("http.tls.reload_interval", self.tls.reload_interval)
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpTlsSettings {
    #[serde(deserialize_with = "optional_path")]
    pub certificate: Option<PathBuf>,
    #[serde(deserialize_with = "optional_path")]
    pub key: Option<PathBuf>,
    pub reload_interval: HumanDuration,
}
