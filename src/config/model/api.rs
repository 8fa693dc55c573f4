//! Settings of the section `[api]`.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::config::Secret;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Api {
    pub local_key: bool,
    pub trust_identity_header: bool,
    pub lookup_mode: LookupMode,
    pub rate_limit: ApiRateLimit,
    pub keys: BTreeMap<String, CallerKey>,
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
    SingleSecret(Secret),
    Detailed(DetailedKey),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetailedKey {
    secrets: Vec<Secret>,
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
    pub fn secrets(&self) -> &[Secret] {
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
