//! Tenants from a JSON file, for deployments without a lookup service.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use serde::Deserialize;
use tokio::time::Instant;

use super::{FoundTenant, TenantLookup, TenantLookupOutcome, TenantSettings};
use domain::{ClientId, Identity, OrgId, Tenant};

/// The file of the setting `tenant.static_file` cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum StaticTenantsError {
    /// The file cannot be read.
    #[error(
        "tenant.static_file: cannot read {}: {source}; check the path, or set it to \"\" to use \
         no file",
        path.display()
    )]
    Unreadable {
        /// Path of the configured file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The file's content is invalid.
    #[error(
        "tenant.static_file: {} is invalid: {problem}; \
         map each client id to {{\"accountId\", \"orgId\"}} or {{\"error\"}}",
        path.display()
    )]
    Malformed {
        /// Path of the configured file.
        path: PathBuf,
        /// Position and description of the error in the file.
        problem: String,
    },
}

/// Tenants from a file that is read at startup. Clients that the file does not contain have the
/// default tenant.
#[derive(Debug)]
pub struct StaticTenants {
    outcomes_by_client_id: HashMap<String, TenantLookupOutcome>,
    default_outcome: TenantLookupOutcome,
    path: Option<PathBuf>,
}

/// The file's entry for one client.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ClientEntry {
    #[serde(default)]
    account_id: Option<String>,
    #[serde(default)]
    org_id: Option<String>,
    #[serde(default)]
    error: Option<String>,
}

impl StaticTenants {
    /// Reads the configured file, if any, and the configured default tenant.
    ///
    /// # Errors
    /// If the file cannot be read or is malformed.
    pub fn read(config: &TenantSettings) -> Result<Self, StaticTenantsError> {
        let outcomes_by_client_id = match &config.static_file {
            Some(path) => read_file(path)?,
            None => HashMap::new(),
        };
        Ok(Self {
            outcomes_by_client_id,
            default_outcome: outcome_for(&config.default_org_id, &config.default_account),
            path: config.static_file.clone(),
        })
    }
}

fn read_file(path: &Path) -> Result<HashMap<String, TenantLookupOutcome>, StaticTenantsError> {
    let bytes = std::fs::read(path).map_err(|source| StaticTenantsError::Unreadable {
        path: path.into(),
        source,
    })?;
    let entries: HashMap<String, ClientEntry> =
        serde_json::from_slice(&bytes).map_err(|error| StaticTenantsError::Malformed {
            path: path.into(),
            problem: error.to_string(),
        })?;
    Ok(entries
        .into_iter()
        .map(|(client, entry)| {
            let outcome = match entry.error {
                Some(_) => TenantLookupOutcome::NotFound,
                None => outcome_for(
                    entry.org_id.as_deref().unwrap_or_default(),
                    entry.account_id.as_deref().unwrap_or_default(),
                ),
            };
            (client, outcome)
        })
        .collect())
}

/// Returns the outcome for an organization and an account number. Returns `NotFound` if the
/// organization is blank.
fn outcome_for(org_id: &str, account: &str) -> TenantLookupOutcome {
    match OrgId::new(org_id) {
        Ok(org_id) => {
            let tenant = Tenant {
                org_id,
                account: account.to_owned(),
            };
            let identity = Identity::for_tenant(&tenant);
            TenantLookupOutcome::Found(FoundTenant { tenant, identity })
        }
        Err(_) => TenantLookupOutcome::NotFound,
    }
}

#[async_trait]
impl TenantLookup for StaticTenants {
    async fn lookup(&self, client: &ClientId, _: Instant) -> TenantLookupOutcome {
        let outcome = self.outcomes_by_client_id.get(client.as_str());
        outcome.unwrap_or(&self.default_outcome).clone()
    }

    async fn check_availability(&self) -> Result<String, String> {
        Ok(match &self.path {
            Some(path) => format!(
                "{} clients from {}",
                self.outcomes_by_client_id.len(),
                path.display()
            ),
            None => match &self.default_outcome {
                TenantLookupOutcome::Found(found) => {
                    format!("all clients belong to organization {}", found.tenant.org_id)
                }
                _ => "no client belongs to an organization".to_owned(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn settings_with_file(static_file: PathBuf) -> TenantSettings {
        TenantSettings {
            gateway_url: None,
            gateway_ca: None,
            gateway_timeout: Duration::from_secs(1).into(),
            gateway_max_concurrency: 1,
            cache_ttl: Duration::ZERO.into(),
            negative_cache_ttl: Duration::ZERO.into(),
            breaker_probe_interval: Duration::from_secs(1).into(),
            allow_mass_loss: false,
            static_file: Some(static_file),
            default_org_id: "10000".into(),
            default_account: "111000".into(),
            translator_url: None,
            translator_timeout: Duration::from_secs(1).into(),
            translator_file: None,
        }
    }

    fn read_tenants(file_content: &str) -> Result<StaticTenants, StaticTenantsError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tenants.json");
        std::fs::write(&path, file_content).unwrap();
        StaticTenants::read(&settings_with_file(path))
    }

    async fn lookup(tenants: &StaticTenants, client: &str) -> TenantLookupOutcome {
        let client = ClientId::new(client).unwrap();
        tenants.lookup(&client, Instant::now()).await
    }

    #[tokio::test]
    async fn lookup_uses_the_file_then_the_default_tenant() {
        let tenants = read_tenants(
            r#"{"a": {"accountId": "010101", "orgId": "10001"}, "b": {"error": "no longer valid"},
                "c": {"orgId": "10002"}, "d": {"accountId": "1", "orgId": ""}}"#,
        )
        .unwrap();
        assert_eq!(lookup(&tenants, "a").await, outcome_for("10001", "010101"));
        assert_eq!(lookup(&tenants, "b").await, TenantLookupOutcome::NotFound);
        assert_eq!(lookup(&tenants, "c").await, outcome_for("10002", ""));
        assert_eq!(lookup(&tenants, "d").await, TenantLookupOutcome::NotFound);
        assert_eq!(lookup(&tenants, "e").await, outcome_for("10000", "111000"));
    }

    #[test]
    fn malformed_file_error_names_the_setting_and_the_expected_keys() {
        let error = read_tenants(r#"{"a": {"org": "1"}}"#)
            .unwrap_err()
            .to_string();
        assert!(error.contains("tenant.static_file"), "{error}");
        assert!(error.contains("orgId"), "{error}");
    }
}
