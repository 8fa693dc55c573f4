//! The keys of the API callers.

use anyhow::Result;

use super::data_dir::{DataDir, LOCAL_CALLER};
use crate::config::Config;
use api::{Keys, Scope};
use service::settings::SecretString;

/// The keys of all callers.
pub(super) struct ApiKeys {
    pub keys: Keys,
    /// The key of the caller `local`. `None` if there is no data folder, or if `api.local_key` is
    /// false.
    pub local_key: Option<SecretString>,
}

/// Returns the configured keys. If there is a data folder and `api.local_key` is true, also returns
/// the key of the caller `local`.
pub(super) fn load_api_keys(config: &Config, data_dir: Option<&DataDir>) -> Result<ApiKeys> {
    let mut keys = Keys::default();
    for (caller, key) in &config.api.keys {
        keys.add(caller, key.secrets().to_vec(), key.scopes().to_vec());
    }
    let local_key = match data_dir {
        Some(data_dir) if config.api.local_key => Some(data_dir.local_key()?),
        _ => None,
    };
    if let Some(key) = &local_key {
        let scopes = vec![Scope::Tenant, Scope::Management];
        keys.add(LOCAL_CALLER, vec![key.clone()], scopes);
    }
    Ok(ApiKeys { keys, local_key })
}
