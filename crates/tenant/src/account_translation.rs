//! Converts between account numbers and organizations. v1 callers identify a tenant by its account
//! number. The store identifies a tenant by its organization.
//!
//! The outcome `NotFound` is definitive, and the outcome `Unavailable` is not.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use moka::sync::Cache;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use domain::{OrgId, Tenant};
use network::http_client;
use service::request_id;

/// Maximum number of bytes that are read from a response body. A real body contains one account
/// number and one organization.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;
/// Maximum length of an account number. The stores reject longer account numbers.
const MAX_ACCOUNT_BYTES: usize = 255;
/// Maximum number of translations in each of the two caches.
const MAX_CACHED_TRANSLATIONS: u64 = 10_000;
/// How long a found translation is cached. `NotFound` is not cached, so a new tenant is usable
/// immediately.
const CACHE_TTL: Duration = Duration::from_mins(10);

/// Result of a translation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TranslationOutcome<T> {
    /// The matching organization or account number.
    Found(T),
    /// No tenant has this account number or this organization. The outcome is definitive.
    NotFound,
    /// The translator gave no usable response.
    Unavailable,
}

/// Translates between account numbers and organizations.
#[async_trait]
pub trait AccountTranslator: Send + Sync + 'static {
    /// Returns the organization with this account number.
    async fn org_of_account(&self, account: &str) -> TranslationOutcome<OrgId>;

    /// Returns the account number of this organization.
    async fn account_of_org(&self, org: &OrgId) -> TranslationOutcome<String>;
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
        /// Why the URL is invalid.
        problem: String,
    },
    /// The file cannot be read.
    #[error(
        "tenant.translator_file: cannot read {}: {source}; check the path, or set it to \"\" to \
         use no file",
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
        "tenant.translator_file: {} is invalid: {problem}; \
         expected {{\"<account>\": \"<organization>\", …}}",
        path.display()
    )]
    Malformed {
        /// Path of the configured file.
        path: PathBuf,
        /// Position and description of the error in the file.
        problem: String,
    },
}

/// HTTP client of the tenant translator. Caches found translations.
pub struct HttpTranslator {
    orgs_url: reqwest::Url,
    accounts_url: reqwest::Url,
    http: reqwest::Client,
    orgs_by_account: Cache<String, OrgId>,
    accounts_by_org: Cache<OrgId, String>,
}

impl HttpTranslator {
    /// Creates a client. `timeout` applies to each request.
    ///
    /// # Errors
    /// If the URL is invalid.
    pub fn new(url: &str, timeout: Duration) -> Result<Self, TranslatorError> {
        let url_error = |problem: String| TranslatorError::Url {
            url: url.to_owned(),
            problem,
        };
        let http = http_client::client_builder(timeout).build();
        let http = http.map_err(|error| url_error(error.to_string()))?;
        Ok(Self {
            orgs_url: http_client::join_path(url, &["internal", "orgIds"]).map_err(url_error)?,
            accounts_url: http_client::join_path(url, &["internal", "ebsNumbers"])
                .map_err(url_error)?,
            http,
            orgs_by_account: new_cache(),
            accounts_by_org: new_cache(),
        })
    }

    /// Requests the translation of an account number or an organization id.
    async fn request_translation(
        &self,
        url: &reqwest::Url,
        id_to_translate: &str,
    ) -> TranslationOutcome<String> {
        // Forwards the request id of the API caller, so the logs of all services contain the same
        // request id.
        let request_id = request_id::current();
        let request_id = request_id.unwrap_or_else(|| Uuid::new_v4().simple().to_string());
        let request = self
            .http
            .post(url.clone())
            .header("content-type", "application/json")
            .header("x-rh-insights-request-id", request_id)
            .body(json!([id_to_translate]).to_string());
        match http_client::send(request, MAX_RESPONSE_BYTES).await {
            Ok((status, body)) => classify_response(status, &body, id_to_translate),
            Err(error) => {
                tracing::debug!(%error, "tenant translator request failed");
                TranslationOutcome::Unavailable
            }
        }
    }
}

#[async_trait]
impl AccountTranslator for HttpTranslator {
    async fn org_of_account(&self, account: &str) -> TranslationOutcome<OrgId> {
        if !is_valid_account(account) {
            return TranslationOutcome::NotFound;
        }
        if let Some(cached_org) = self.orgs_by_account.get(account) {
            return TranslationOutcome::Found(cached_org);
        }
        let org = match self.request_translation(&self.orgs_url, account).await {
            TranslationOutcome::Found(org) => OrgId::new(&org),
            TranslationOutcome::NotFound => return TranslationOutcome::NotFound,
            TranslationOutcome::Unavailable => return TranslationOutcome::Unavailable,
        };
        // An invalid organization id means that the response is malformed. The outcome is then not
        // a definite "not found".
        let Ok(org) = org else {
            return TranslationOutcome::Unavailable;
        };
        self.orgs_by_account.insert(account.to_owned(), org.clone());
        TranslationOutcome::Found(org)
    }

    async fn account_of_org(&self, org: &OrgId) -> TranslationOutcome<String> {
        if let Some(cached_account) = self.accounts_by_org.get(org) {
            return TranslationOutcome::Found(cached_account);
        }
        let outcome = self
            .request_translation(&self.accounts_url, org.as_str())
            .await;
        match &outcome {
            TranslationOutcome::Found(account) if !is_valid_account(account) => {
                return TranslationOutcome::Unavailable;
            }
            TranslationOutcome::Found(account) => {
                self.accounts_by_org.insert(org.clone(), account.clone());
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
        .max_capacity(MAX_CACHED_TRANSLATIONS)
        .time_to_live(CACHE_TTL)
        .build()
}

/// Classifies a response. Returns `NotFound` only if the status is 200 and the body is a JSON
/// object. An error page of a proxy or of another server is `Unavailable`.
fn classify_response(
    status: u16,
    body: &[u8],
    id_to_translate: &str,
) -> TranslationOutcome<String> {
    if status != 200 {
        return TranslationOutcome::Unavailable;
    }
    let Ok(pairs) = serde_json::from_slice::<Map<String, Value>>(body) else {
        return TranslationOutcome::Unavailable;
    };
    match pairs.get(id_to_translate) {
        None | Some(Value::Null) => TranslationOutcome::NotFound,
        Some(Value::String(text)) if text.trim().is_empty() => TranslationOutcome::NotFound,
        Some(Value::String(text)) => TranslationOutcome::Found(text.clone()),
        Some(_) => TranslationOutcome::Unavailable,
    }
}

fn is_valid_account(account: &str) -> bool {
    !account.trim().is_empty() && account.len() <= MAX_ACCOUNT_BYTES && !account.contains('\0')
}

/// Translations from a file that is read at startup, for deployments without a translator service.
#[derive(Debug, Default)]
pub struct StaticTranslator {
    orgs_by_account: HashMap<String, OrgId>,
    accounts_by_org: HashMap<OrgId, String>,
}

impl StaticTranslator {
    /// Reads the JSON file `{"<account>": "<organization>", …}`, if a path is given, and adds the
    /// default tenant. The file has precedence over the default tenant. If several accounts have
    /// the same organization, `account_of_org` returns the first account in alphabetical order.
    ///
    /// # Errors
    /// If the file cannot be read or is malformed.
    pub fn read(
        path: Option<&Path>,
        default_tenant: Option<&Tenant>,
    ) -> Result<Self, TranslatorError> {
        let mut translator = Self::default();
        for (account, org) in path.map(read_file).transpose()?.unwrap_or_default() {
            translator.add_pair(&account, &org);
        }
        if let Some(Tenant { org_id, account }) = default_tenant
            && is_valid_account(account)
        {
            translator.add_pair(account, org_id);
        }
        Ok(translator)
    }

    /// Adds an account number and its organization. Earlier pairs have precedence in both
    /// directions.
    fn add_pair(&mut self, account: &str, org: &OrgId) {
        if !self.orgs_by_account.contains_key(account) {
            self.orgs_by_account.insert(account.to_owned(), org.clone());
            let account_entry = self.accounts_by_org.entry(org.clone());
            account_entry.or_insert_with(|| account.to_owned());
        }
    }
}

fn read_file(path: &Path) -> Result<BTreeMap<String, OrgId>, TranslatorError> {
    let bytes = std::fs::read(path).map_err(|source| TranslatorError::Unreadable {
        path: path.into(),
        source,
    })?;
    let malformed_error = |problem: String| TranslatorError::Malformed {
        path: path.into(),
        problem,
    };
    let pairs: BTreeMap<String, String> =
        serde_json::from_slice(&bytes).map_err(|error| malformed_error(error.to_string()))?;
    pairs
        .into_iter()
        .map(|(account, org)| {
            if !is_valid_account(&account) {
                return Err(malformed_error(format!(
                    "{account:?} is not a valid account number"
                )));
            }
            let org = OrgId::new(&org).map_err(|error| {
                malformed_error(format!(
                    "invalid organization for account {account:?}: {error}"
                ))
            })?;
            Ok((account, org))
        })
        .collect()
}

#[async_trait]
impl AccountTranslator for StaticTranslator {
    async fn org_of_account(&self, account: &str) -> TranslationOutcome<OrgId> {
        outcome_from_option(self.orgs_by_account.get(account))
    }

    async fn account_of_org(&self, org: &OrgId) -> TranslationOutcome<String> {
        outcome_from_option(self.accounts_by_org.get(org))
    }
}

fn outcome_from_option<T: Clone>(translation: Option<&T>) -> TranslationOutcome<T> {
    match translation {
        Some(translation) => TranslationOutcome::Found(translation.clone()),
        None => TranslationOutcome::NotFound,
    }
}
