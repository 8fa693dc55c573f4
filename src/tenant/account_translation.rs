//! Converts between account numbers and organizations. v1 callers identify tenants by account
//! number; the store identifies them by organization.
//!
//! As for tenant lookups, `NotFound` is definitive and `Unavailable` is not.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use moka::sync::Cache;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::domain::{OrgId, Tenant};
use crate::http_client;
use crate::telemetry::request_id;

/// Maximum size of a response body that is read. Real responses contain a single pair.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;
/// Maximum length of an account number. The stores accept no longer one.
const MAX_ACCOUNT_BYTES: usize = 255;
/// Maximum number of cached pairs per direction.
const CACHE_CAPACITY: u64 = 10_000;
/// How long a found pair is cached. `NotFound` is not cached, so a new tenant is usable
/// immediately.
const CACHE_TTL: Duration = Duration::from_mins(10);

/// Result of a translation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TranslationOutcome<T> {
    /// The matching organization or account number.
    Found(T),
    /// There definitely is no such tenant.
    NotFound,
    /// The translator gave no usable response.
    Unavailable,
}

/// Translates between account numbers and organizations.
#[async_trait]
pub trait AccountTranslator: Send + Sync + 'static {
    /// Returns the organization with this account number.
    async fn org_of(&self, account: &str) -> TranslationOutcome<OrgId>;

    /// Returns the account number of this organization.
    async fn account_of(&self, org: &OrgId) -> TranslationOutcome<String>;
}

/// Invalid translator settings.
#[derive(Debug, thiserror::Error)]
pub enum TranslatorError {
    /// The URL is malformed.
    #[error(
        "tenant.translator_url: {url:?} is not a valid URL: {problem}; \
         example: \"http://translator.example:8892\", or set it to \"\" to use no translator"
    )]
    Url {
        /// The configured URL.
        url: String,
        /// Why it is invalid.
        problem: String,
    },
    /// The file cannot be read.
    #[error(
        "tenant.translator_file: cannot read {}: {source}; check the path, or set it to \"\" to \
         use no file",
        path.display()
    )]
    Unreadable {
        /// The configured file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The file's content is invalid.
    #[error(
        "tenant.translator_file: {} is invalid: {problem}; \
         expected {{\"<account>\": \"<organization>\", …}}",
        path.display()
    )]
    Malformed {
        /// The configured file.
        path: PathBuf,
        /// The position and the kind of the problem.
        problem: String,
    },
}

/// HTTP client of the tenant translator, with a cache of found pairs.
pub struct HttpTranslator {
    orgs_url: reqwest::Url,
    accounts_url: reqwest::Url,
    http: reqwest::Client,
    orgs: Cache<String, OrgId>,
    accounts: Cache<OrgId, String>,
}

impl HttpTranslator {
    /// Creates a client. `timeout` applies to each request.
    ///
    /// # Errors
    /// If the URL is invalid.
    pub fn new(url: &str, timeout: Duration) -> Result<Self, TranslatorError> {
        let bad_url = |problem: String| TranslatorError::Url {
            url: url.to_owned(),
            problem,
        };
        let http = http_client::client_builder(timeout).build();
        let http = http.map_err(|error| bad_url(error.to_string()))?;
        Ok(Self {
            orgs_url: http_client::join_path(url, &["internal", "orgIds"]).map_err(bad_url)?,
            accounts_url: http_client::join_path(url, &["internal", "ebsNumbers"])
                .map_err(bad_url)?,
            http,
            orgs: new_cache(),
            accounts: new_cache(),
        })
    }

    async fn request(&self, url: &reqwest::Url, key: &str) -> TranslationOutcome<String> {
        // Forwards the API caller's request id, to trace the request through all services.
        let request_id = request_id::current();
        let request_id = request_id.unwrap_or_else(|| Uuid::new_v4().simple().to_string());
        let request = self
            .http
            .post(url.clone())
            .header("content-type", "application/json")
            .header("x-rh-insights-request-id", request_id)
            .body(json!([key]).to_string());
        match http_client::send(request, MAX_RESPONSE_BYTES).await {
            Ok((status, body)) => classify_response(status, &body, key),
            Err(error) => {
                tracing::debug!(%error, "tenant translator request failed");
                TranslationOutcome::Unavailable
            }
        }
    }
}

#[async_trait]
impl AccountTranslator for HttpTranslator {
    async fn org_of(&self, account: &str) -> TranslationOutcome<OrgId> {
        if !is_valid_account(account) {
            return TranslationOutcome::NotFound;
        }
        if let Some(cached) = self.orgs.get(account) {
            return TranslationOutcome::Found(cached);
        }
        let org = match self.request(&self.orgs_url, account).await {
            TranslationOutcome::Found(org) => OrgId::new(&org),
            TranslationOutcome::NotFound => return TranslationOutcome::NotFound,
            TranslationOutcome::Unavailable => return TranslationOutcome::Unavailable,
        };
        // An invalid organization is a malformed response, not a definite "not found".
        let Ok(org) = org else {
            return TranslationOutcome::Unavailable;
        };
        self.orgs.insert(account.to_owned(), org.clone());
        TranslationOutcome::Found(org)
    }

    async fn account_of(&self, org: &OrgId) -> TranslationOutcome<String> {
        if let Some(cached) = self.accounts.get(org) {
            return TranslationOutcome::Found(cached);
        }
        let outcome = self.request(&self.accounts_url, org.as_str()).await;
        match &outcome {
            TranslationOutcome::Found(account) if !is_valid_account(account) => {
                return TranslationOutcome::Unavailable;
            }
            TranslationOutcome::Found(account) => {
                self.accounts.insert(org.clone(), account.clone());
            }
            TranslationOutcome::NotFound | TranslationOutcome::Unavailable => {}
        }
        outcome
    }
}

fn new_cache<K, V>() -> Cache<K, V>
where
    K: std::hash::Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    Cache::builder()
        .max_capacity(CACHE_CAPACITY)
        .time_to_live(CACHE_TTL)
        .build()
}

/// Classifies a response. `NotFound` needs status 200 and a JSON object. An error page of a proxy,
/// or of a wrong URL, is `Unavailable`.
fn classify_response(status: u16, body: &[u8], key: &str) -> TranslationOutcome<String> {
    if status != 200 {
        return TranslationOutcome::Unavailable;
    }
    let Ok(pairs) = serde_json::from_slice::<Map<String, Value>>(body) else {
        return TranslationOutcome::Unavailable;
    };
    match pairs.get(key) {
        None | Some(Value::Null) => TranslationOutcome::NotFound,
        Some(Value::String(text)) if text.trim().is_empty() => TranslationOutcome::NotFound,
        Some(Value::String(text)) => TranslationOutcome::Found(text.clone()),
        Some(_) => TranslationOutcome::Unavailable,
    }
}

fn is_valid_account(account: &str) -> bool {
    !account.trim().is_empty() && account.len() <= MAX_ACCOUNT_BYTES && !account.contains('\0')
}

/// Account numbers from a file that is read at startup, for deployments without a translator.
#[derive(Debug, Default)]
pub struct StaticTranslator {
    orgs: HashMap<String, OrgId>,
    accounts: HashMap<OrgId, String>,
}

impl StaticTranslator {
    /// Reads a JSON file `{"<account>": "<organization>", …}`, if given, and adds the default
    /// tenant. The file has precedence over the default tenant. If several accounts have the same
    /// organization, `account_of` returns the alphabetically first.
    ///
    /// # Errors
    /// If the file cannot be read or is malformed.
    pub fn read(file: Option<&Path>, default: Option<&Tenant>) -> Result<Self, TranslatorError> {
        let mut translator = Self::default();
        for (account, org) in file.map(read_file).transpose()?.unwrap_or_default() {
            translator.add(&account, &org);
        }
        if let Some(Tenant { org_id, account }) = default
            && is_valid_account(account)
        {
            translator.add(account, org_id);
        }
        Ok(translator)
    }

    /// Adds a pair. Earlier pairs have precedence, in both directions.
    fn add(&mut self, account: &str, org: &OrgId) {
        if !self.orgs.contains_key(account) {
            self.orgs.insert(account.to_owned(), org.clone());
            let accounts = self.accounts.entry(org.clone());
            accounts.or_insert_with(|| account.to_owned());
        }
    }
}

fn read_file(path: &Path) -> Result<BTreeMap<String, OrgId>, TranslatorError> {
    let bytes = std::fs::read(path).map_err(|source| TranslatorError::Unreadable {
        path: path.into(),
        source,
    })?;
    let malformed = |problem: String| TranslatorError::Malformed {
        path: path.into(),
        problem,
    };
    let pairs: BTreeMap<String, String> =
        serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?;
    pairs
        .into_iter()
        .map(|(account, org)| {
            if !is_valid_account(&account) {
                return Err(malformed(format!(
                    "{account:?} is not a valid account number"
                )));
            }
            let org = OrgId::new(&org).map_err(|error| {
                malformed(format!(
                    "invalid organization for account {account:?}: {error}"
                ))
            })?;
            Ok((account, org))
        })
        .collect()
}

#[async_trait]
impl AccountTranslator for StaticTranslator {
    async fn org_of(&self, account: &str) -> TranslationOutcome<OrgId> {
        found_or_not(self.orgs.get(account))
    }

    async fn account_of(&self, org: &OrgId) -> TranslationOutcome<String> {
        found_or_not(self.accounts.get(org))
    }
}

fn found_or_not<T: Clone>(value: Option<&T>) -> TranslationOutcome<T> {
    match value {
        Some(value) => TranslationOutcome::Found(value.clone()),
        None => TranslationOutcome::NotFound,
    }
}
