//! Account number ↔ organisation: callers of the old interface know accounts, we know organisations.
//!
//! As with tenants, "there is none" is an answer and "I could not ask" is not.

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

/// Largest answer that is read. Real ones name a single pair.
const ANSWER_MAX_BYTES: usize = 64 * 1024;
/// Longest account number in bytes; no store would keep a longer one.
const ACCOUNT_MAX_BYTES: usize = 255;
/// How many answers of each direction are remembered.
const REMEMBERED: u64 = 10_000;
/// How long they are. "There is none" is not remembered: whoever was just made is known at once.
const REMEMBERED_FOR: Duration = Duration::from_mins(10);

/// What a translation came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TranslationOutcome<T> {
    /// This.
    Found(T),
    /// A definite answer: there is no such tenant.
    NotFound,
    /// No answer.
    Unavailable,
}

/// Something that knows which account number and which organisation belong together.
#[async_trait]
pub trait AccountTranslator: Send + Sync + 'static {
    /// The organisation with this account number.
    async fn org_of(&self, account: &str) -> TranslationOutcome<OrgId>;

    /// The account number of this organisation.
    async fn account_of(&self, org: &OrgId) -> TranslationOutcome<String>;
}

/// Why a translator cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TranslatorError {
    /// The address is malformed.
    #[error(
        "tenant.translator_url: {url:?} is not an address: {problem}; write it as in \"http://translator.example:8892\", or set it to \"\" to do without"
    )]
    Url {
        /// The address.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// The file cannot be read.
    #[error("tenant.translator_file: cannot read {}: {source}; check the path, or set it to \"\" to do without", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file does not hold what it should.
    #[error("tenant.translator_file: {} is not a map of account numbers: {problem}; write it as {{\"<account>\": \"<organisation>\", …}}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where and what.
        problem: String,
    },
}

/// The tenant translator, over HTTP. What it found is remembered for a while.
pub struct HttpTranslator {
    orgs_url: reqwest::Url,
    accounts_url: reqwest::Url,
    http: reqwest::Client,
    orgs: Cache<String, OrgId>,
    accounts: Cache<OrgId, String>,
}

impl HttpTranslator {
    /// A translator at this address, which has so long to answer.
    ///
    /// # Errors
    /// When the address cannot be one.
    pub fn new(url: &str, timeout: Duration) -> Result<Self, TranslatorError> {
        let bad_url = |problem: String| TranslatorError::Url {
            url: url.to_owned(),
            problem,
        };
        let http = http_client::client(timeout).build();
        let http = http.map_err(|why| bad_url(why.to_string()))?;
        Ok(Self {
            orgs_url: http_client::below(url, &["internal", "orgIds"]).map_err(bad_url)?,
            accounts_url: http_client::below(url, &["internal", "ebsNumbers"]).map_err(bad_url)?,
            http,
            orgs: remembering(),
            accounts: remembering(),
        })
    }

    async fn ask(&self, url: &reqwest::Url, wanted: &str) -> TranslationOutcome<String> {
        // The caller's, so that its request can be followed through all services.
        let request_id = request_id::current();
        let request_id = request_id.unwrap_or_else(|| Uuid::new_v4().simple().to_string());
        let request = self
            .http
            .post(url.clone())
            .header("content-type", "application/json")
            .header("x-rh-insights-request-id", request_id)
            .body(json!([wanted]).to_string());
        match http_client::ask(request, ANSWER_MAX_BYTES).await {
            Ok((status, body)) => judge(status, &body, wanted),
            Err(error) => {
                tracing::debug!(%error, "the tenant translator does not answer");
                TranslationOutcome::Unavailable
            }
        }
    }
}

#[async_trait]
impl AccountTranslator for HttpTranslator {
    async fn org_of(&self, account: &str) -> TranslationOutcome<OrgId> {
        if !can_be_account(account) {
            return TranslationOutcome::NotFound;
        }
        if let Some(known) = self.orgs.get(account) {
            return TranslationOutcome::Found(known);
        }
        let org = match self.ask(&self.orgs_url, account).await {
            TranslationOutcome::Found(org) => OrgId::new(&org),
            TranslationOutcome::NotFound => return TranslationOutcome::NotFound,
            TranslationOutcome::Unavailable => return TranslationOutcome::Unavailable,
        };
        // What cannot be an organisation's name was not said by the translator.
        let Ok(org) = org else {
            return TranslationOutcome::Unavailable;
        };
        self.orgs.insert(account.to_owned(), org.clone());
        TranslationOutcome::Found(org)
    }

    async fn account_of(&self, org: &OrgId) -> TranslationOutcome<String> {
        if let Some(known) = self.accounts.get(org) {
            return TranslationOutcome::Found(known);
        }
        let answer = self.ask(&self.accounts_url, org.as_str()).await;
        match &answer {
            TranslationOutcome::Found(account) if !can_be_account(account) => {
                return TranslationOutcome::Unavailable;
            }
            TranslationOutcome::Found(account) => {
                self.accounts.insert(org.clone(), account.clone())
            }
            TranslationOutcome::NotFound | TranslationOutcome::Unavailable => {}
        }
        answer
    }
}

fn remembering<K, V>() -> Cache<K, V>
where
    K: std::hash::Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    Cache::builder()
        .max_capacity(REMEMBERED)
        .time_to_live(REMEMBERED_FOR)
        .build()
}

/// What an answer means. Only a map is the translator's own word: a proxy's page or a wrong address
/// must not make a tenant vanish.
fn judge(status: u16, body: &[u8], wanted: &str) -> TranslationOutcome<String> {
    if status != 200 {
        return TranslationOutcome::Unavailable;
    }
    let Ok(pairs) = serde_json::from_slice::<Map<String, Value>>(body) else {
        return TranslationOutcome::Unavailable;
    };
    match pairs.get(wanted) {
        None | Some(Value::Null) => TranslationOutcome::NotFound,
        Some(Value::String(found)) if found.trim().is_empty() => TranslationOutcome::NotFound,
        Some(Value::String(found)) => TranslationOutcome::Found(found.clone()),
        Some(_) => TranslationOutcome::Unavailable,
    }
}

fn can_be_account(account: &str) -> bool {
    !account.trim().is_empty() && account.len() <= ACCOUNT_MAX_BYTES && !account.contains('\0')
}

/// A map that was read once, for set-ups without a translator.
#[derive(Debug, Default)]
pub struct StaticTranslator {
    orgs: HashMap<String, OrgId>,
    accounts: HashMap<OrgId, String>,
}

impl StaticTranslator {
    /// Reads a JSON file `{"<account>": "<organisation>", …}`, where one is named, and adds the
    /// default tenant's pair; the file's word goes before it. Of several accounts of one
    /// organisation, the first in order of the alphabet is the one that the organisation has.
    ///
    /// # Errors
    /// When the file cannot be read or is malformed.
    pub fn read(file: Option<&Path>, default: Option<&Tenant>) -> Result<Self, TranslatorError> {
        let mut translator = Self::default();
        for (account, org) in file.map(read_file).transpose()?.unwrap_or_default() {
            translator.add(&account, &org);
        }
        if let Some(Tenant { org_id, account }) = default
            && can_be_account(account)
        {
            translator.add(account, org_id);
        }
        Ok(translator)
    }

    /// What was said first stays, in both directions.
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
            if !can_be_account(&account) {
                return Err(malformed(format!("{account:?} is not an account number")));
            }
            let org = OrgId::new(&org).map_err(|why| {
                malformed(format!("the organisation of {account:?} is not one: {why}"))
            })?;
            Ok((account, org))
        })
        .collect()
}

#[async_trait]
impl AccountTranslator for StaticTranslator {
    async fn org_of(&self, account: &str) -> TranslationOutcome<OrgId> {
        named(self.orgs.get(account))
    }

    async fn account_of(&self, org: &OrgId) -> TranslationOutcome<String> {
        named(self.accounts.get(org))
    }
}

fn named<T: Clone>(found: Option<&T>) -> TranslationOutcome<T> {
    match found {
        Some(found) => TranslationOutcome::Found(found.clone()),
        None => TranslationOutcome::NotFound,
    }
}
