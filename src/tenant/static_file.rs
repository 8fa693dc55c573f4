//! TenantLookup from a JSON file, for set-ups without a lookup service.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use serde::Deserialize;
use tokio::time::Instant;

use super::{FoundTenant, TenantLookup, TenantLookupOutcome};
use crate::config::TenantConfig;
use crate::domain::{ClientId, Identity, OrgId, Tenant};

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be read.
    #[error("tenant.static_file: cannot read {}: {source}; check the path, or set it to \"\" to do without", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It does not hold what it should.
    #[error("tenant.static_file: {} is not a map of tenants: {problem}; each client id has {{\"accountId\", \"orgId\"}} or {{\"error\"}}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where and what.
        problem: String,
    },
}

/// A map that was read once, and a default for whom it does not name.
#[derive(Debug)]
pub struct StaticTenants {
    named: HashMap<String, TenantLookupOutcome>,
    others: TenantLookupOutcome,
    source: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    #[serde(default)]
    account_id: Option<String>,
    #[serde(default)]
    org_id: Option<String>,
    #[serde(default)]
    error: Option<String>,
}

impl StaticTenants {
    /// Reads what the configuration names.
    ///
    /// # Errors
    /// When the file cannot be read or is malformed.
    pub fn read(settings: &TenantConfig) -> Result<Self, ReadError> {
        let named = match &settings.static_file {
            Some(path) => read_file(path)?,
            None => HashMap::new(),
        };
        Ok(Self {
            named,
            others: answer(&settings.default_org_id, &settings.default_account),
            source: settings.static_file.clone(),
        })
    }
}

fn read_file(path: &Path) -> Result<HashMap<String, TenantLookupOutcome>, ReadError> {
    let bytes = std::fs::read(path).map_err(|source| ReadError::Unreadable {
        path: path.into(),
        source,
    })?;
    let entries: HashMap<String, Entry> =
        serde_json::from_slice(&bytes).map_err(|error| ReadError::Malformed {
            path: path.into(),
            problem: error.to_string(),
        })?;
    Ok(entries
        .into_iter()
        .map(|(client, entry)| {
            let found = match entry.error {
                Some(_) => TenantLookupOutcome::NotFound,
                None => answer(
                    entry.org_id.as_deref().unwrap_or_default(),
                    entry.account_id.as_deref().unwrap_or_default(),
                ),
            };
            (client, found)
        })
        .collect())
}

/// An organisation that is missing or blank is a definite "nobody".
fn answer(org_id: &str, account: &str) -> TenantLookupOutcome {
    match OrgId::new(org_id) {
        Ok(org_id) => {
            let tenant = Tenant {
                org_id,
                account: account.to_owned(),
            };
            let identity = Identity::made_for(&tenant);
            TenantLookupOutcome::Found(FoundTenant { tenant, identity })
        }
        Err(_) => TenantLookupOutcome::NotFound,
    }
}

#[async_trait]
impl TenantLookup for StaticTenants {
    async fn lookup(&self, client: &ClientId, _: Instant) -> TenantLookupOutcome {
        self.named
            .get(client.as_str())
            .unwrap_or(&self.others)
            .clone()
    }

    async fn probe(&self) -> Result<String, String> {
        Ok(match &self.source {
            Some(path) => format!("{} clients from {}", self.named.len(), path.display()),
            None => match &self.others {
                TenantLookupOutcome::Found(found) => {
                    format!(
                        "every client belongs to organisation {}",
                        found.tenant.org_id
                    )
                }
                _ => "no client belongs to any organisation".to_owned(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;

    fn defaults() -> TenantConfig {
        let none = std::iter::empty();
        let loaded = crate::config::load_with(&Overrides::default(), none);
        loaded.unwrap().config.tenant
    }

    fn read(text: &str) -> Result<StaticTenants, ReadError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tenants.json");
        std::fs::write(&path, text).unwrap();
        StaticTenants::read(&TenantConfig {
            static_file: Some(path),
            ..defaults()
        })
    }

    async fn lookup(tenants: &StaticTenants, client: &str) -> TenantLookupOutcome {
        let client = ClientId::new(client).unwrap();
        tenants.lookup(&client, Instant::now()).await
    }

    #[tokio::test]
    async fn the_map_names_tenants_errors_and_leaves_the_rest_to_the_default() {
        let tenants = read(
            r#"{"a": {"accountId": "010101", "orgId": "10001"}, "b": {"error": "no longer valid"},
                "c": {"orgId": "10002"}, "d": {"accountId": "1", "orgId": ""}}"#,
        )
        .unwrap();
        assert_eq!(lookup(&tenants, "a").await, answer("10001", "010101"));
        assert_eq!(lookup(&tenants, "b").await, TenantLookupOutcome::NotFound);
        assert_eq!(lookup(&tenants, "c").await, answer("10002", ""));
        assert_eq!(lookup(&tenants, "d").await, TenantLookupOutcome::NotFound);
        assert_eq!(lookup(&tenants, "e").await, answer("10000", "111000"));
    }

    #[test]
    fn a_malformed_map_names_its_key_and_its_shape() {
        let text = read(r#"{"a": {"org": "1"}}"#).unwrap_err().to_string();
        assert!(text.contains("tenant.static_file"), "{text}");
        assert!(text.contains("orgId"), "{text}");
    }
}
