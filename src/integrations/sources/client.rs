//! Registering catalog proxies with the sources service: which connections, in what words, and how.
//!
//! `registrar` does it beside the recording, which never waits for it.

use std::error::Error as _;
use std::time::Duration;

use reqwest::header::HeaderValue;
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::domain::{ClientId, ClientInfo, ClientKind, Dialect, Identity};
use crate::http_client;

/// The worker of a status-dialect client that makes it a catalog proxy.
const DISPATCHER: &str = "catalog";
/// Longest part of a source in bytes. They wait in memory, and one goes into an address.
const PART_MAX_BYTES: usize = 1024;
/// Largest list of sources that is read.
const ANSWER_MAX_BYTES: usize = 1024 * 1024;
/// How much of a refusal is kept for the log.
const REFUSAL_MAX_BYTES: usize = 1024;

/// What the sources service is told of a catalog proxy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    /// What it is found by.
    pub source_ref: String,
    /// What people call it.
    pub name: String,
    /// The name of its type.
    pub source_type: String,
    /// The name of the type of application that it is for.
    pub application_type: String,
}

/// The source that a connection stands for, if it is a catalog proxy that says all there is to say.
#[must_use]
pub fn source_of(
    client_id: &ClientId,
    dialect: Dialect,
    kind: ClientKind,
    reported: &ClientInfo,
) -> Option<Source> {
    let id = || client_id.as_str().to_owned();
    match (dialect, kind) {
        (Dialect::Status, _) => {
            // The name has neither `-` nor `_`, so it has one spelling.
            let worker = reported.dispatchers.get(DISPATCHER)?;
            Some(Source {
                source_ref: part(worker, "SourceRef")?,
                name: part(worker, "SrcName")?,
                source_type: part(worker, "SrcType")?,
                application_type: part(worker, "ApplicationType")?,
            })
        }
        (Dialect::Handshake, ClientKind::Proxy) => {
            let facts = &reported.catalog_service_facts;
            Some(Source {
                source_ref: id(),
                name: id(),
                source_type: part(facts, "source_type")?,
                application_type: part(facts, "application_type")?,
            })
        }
        (Dialect::Handshake, ClientKind::Host) => None,
    }
}

/// A text of some length: an empty reference would be found with every source that has none.
fn part(of: &Value, key: &str) -> Option<String> {
    let text = of.get(key)?.as_str()?;
    let is_usable = !text.trim().is_empty() && text.len() <= PART_MAX_BYTES;
    is_usable.then(|| text.to_owned())
}

#[derive(Serialize)]
struct BulkCreate<'a> {
    sources: [NewSource<'a>; 1],
    applications: [NewApplication<'a>; 1],
    endpoints: [NewEndpoint<'a>; 1],
}

#[derive(Serialize)]
struct NewSource<'a> {
    source_ref: &'a str,
    name: &'a str,
    source_type_name: &'a str,
}

#[derive(Serialize)]
struct NewApplication<'a> {
    source_name: &'a str,
    application_type_name: &'a str,
}

#[derive(Serialize)]
struct NewEndpoint<'a> {
    source_name: &'a str,
    receptor_node: &'a str,
}

/// The request that makes a source, its application and the endpoint that is the client.
pub(super) fn bulk_create(source: &Source, client: &ClientId) -> Vec<u8> {
    let source_name = source.name.as_str();
    let request = BulkCreate {
        sources: [NewSource {
            source_ref: &source.source_ref,
            name: source_name,
            source_type_name: &source.source_type,
        }],
        applications: [NewApplication {
            source_name,
            application_type_name: &source.application_type,
        }],
        endpoints: [NewEndpoint {
            source_name,
            receptor_node: client.as_str(),
        }],
    };
    // Serialising strings into memory has nothing to fail at.
    serde_json::to_vec(&request).unwrap_or_default()
}

/// What became of a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The service had it.
    Existed,
    /// The service has it now.
    Made,
    /// The service will not have it, and the same again would be refused again. Its first words.
    Refused(String),
    /// No answer that can be read, or not this time.
    Failed(String),
}

impl Outcome {
    /// Its name as a metric's label.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Existed => "existed",
            Self::Made => "made",
            Self::Refused(_) => "refused",
            Self::Failed(_) => "failed",
        }
    }
}

/// Why the service cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "sources.url: {url:?} is not an address: {problem}; write it as in \"http://sources.example:8000\", or set it to \"\" to register nothing"
)]
pub struct SourcesError {
    /// The address.
    pub url: String,
    /// What is wrong.
    pub problem: String,
}

/// The sources service, over HTTP.
pub struct Sources {
    pub(super) list_url: reqwest::Url,
    create_url: reqwest::Url,
    http: reqwest::Client,
}

impl Sources {
    /// The service at this address, which has so long to answer each request.
    ///
    /// # Errors
    /// When the address cannot be one.
    pub fn new(url: &str, timeout: Duration) -> Result<Self, SourcesError> {
        let bad_url = |problem: String| SourcesError {
            url: url.to_owned(),
            problem,
        };
        let http = http_client::client(timeout).build();
        let http = http.map_err(|why| bad_url(why.to_string()))?;
        let below = |path: [&str; 2]| {
            let path = [&["api", "sources"], &path[..]].concat();
            http_client::below(url, &path).map_err(bad_url)
        };
        Ok(Self {
            list_url: below(["v3.0", "sources"])?,
            create_url: below(["v3.1", "bulk_create"])?,
            http,
        })
    }

    /// Registers a source in the name of this identity, unless the service has it.
    pub async fn register(
        &self,
        identity: &Identity,
        source: &Source,
        client: &ClientId,
    ) -> Outcome {
        // One id for both requests: they are one thing to whoever follows them.
        let request_id = Uuid::new_v4().simple().to_string();
        let mut list_url = self.list_url.clone();
        list_url
            .query_pairs_mut()
            .append_pair("source_ref", &source.source_ref);
        let list = self.http.get(list_url);
        let listed = answer(list, identity, &request_id, ANSWER_MAX_BYTES).await;
        match listed.and_then(|(status, body)| exists(status, &body)) {
            Ok(true) => return Outcome::Existed,
            Ok(false) => {}
            Err(why) => return Outcome::Failed(why),
        }
        let create = self.http.post(self.create_url.clone());
        let create = create
            .header("content-type", "application/json")
            .body(bulk_create(source, client));
        match answer(create, identity, &request_id, REFUSAL_MAX_BYTES).await {
            Ok((status, body)) => created(status, &body),
            Err(why) => Outcome::Failed(why),
        }
    }
}

/// Sends a request, and reads no more than so much of its answer.
async fn answer(
    request: reqwest::RequestBuilder,
    identity: &Identity,
    request_id: &str,
    most: usize,
) -> Result<(u16, Vec<u8>), String> {
    let mut who = HeaderValue::from_str(identity.to_base64()).map_err(|why| why.to_string())?;
    who.set_sensitive(true);
    let request = request
        .header("x-rh-identity", who)
        .header("x-rh-insights-request-id", request_id);
    http_client::ask(request, most).await.map_err(no_answer)
}

/// Without the address, which may hold a password, and with the cause, which the client leaves out.
fn no_answer(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(why) = cause {
        text = format!("{text}: {why}");
        cause = why.source();
    }
    text
}

/// Whether the list names a source. Anything but a list is no answer: taken for an empty one, it
/// would have the source made twice.
fn exists(status: u16, body: &[u8]) -> Result<bool, String> {
    if status != 200 {
        return Err(format!("asked for the source, it answers {status}"));
    }
    let body: Option<Value> = serde_json::from_slice(body).ok();
    match body.as_ref().and_then(|body| body.get("data")?.as_array()) {
        Some(data) => Ok(!data.is_empty()),
        None => Err("asked for the source, it answers with no list".to_owned()),
    }
}

fn created(status: u16, body: &[u8]) -> Outcome {
    match status {
        201 => Outcome::Made,
        400 => Outcome::Refused(String::from_utf8_lossy(body).into_owned()),
        _ => Outcome::Failed(format!("asked to make the source, it answers {status}")),
    }
}
