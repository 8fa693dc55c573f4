//! Decides which connections are catalog proxies, and registers them with the sources service over
//! HTTP.

use std::error::Error as _;
use std::time::Duration;

use reqwest::header::HeaderValue;
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use domain::{ClientId, ClientInfo, ClientKind, DialectName, Identity};
use network::http_client;

/// The dispatcher that makes a client a catalog proxy, if the client's dialect reports dispatchers.
const CATALOG_DISPATCHER: &str = "catalog";
/// Maximum length of each field of a source. The limit is needed because queued sources are in
/// memory and `source_ref` becomes part of a URL.
const MAX_SOURCE_FIELD_BYTES: usize = 1024;
/// Maximum number of bytes that are read from the response to a list request.
const MAX_LIST_RESPONSE_BYTES: usize = 1024 * 1024;
/// Maximum number of bytes that are read from the response to a create request. The bytes are
/// logged.
const MAX_CREATE_RESPONSE_BYTES: usize = 1024;

/// A catalog proxy, in the data model of the sources service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    /// The key of the source in the sources service.
    pub source_ref: String,
    /// The display name of the source.
    pub display_name: String,
    /// The type of the source.
    pub source_type: String,
    /// The type of the application that uses the source.
    pub application_type: String,
}

/// Returns the source to register for a connection. Returns `None` if the client is not a catalog
/// proxy, if a required field is missing, or if the dialect is unknown.
#[must_use]
pub fn catalog_source(
    client_id: &ClientId,
    dialect: &DialectName,
    kind: ClientKind,
    info: &ClientInfo,
) -> Option<Source> {
    if protocol::find_dialect(dialect)?.reports_dispatchers() {
        // Clients can write `-` as `_` in dispatcher names. The name "catalog" contains neither
        // character, so an exact match is sufficient.
        let dispatcher = info.dispatchers.get(CATALOG_DISPATCHER)?;
        return Some(Source {
            source_ref: text_field(dispatcher, "SourceRef")?,
            display_name: text_field(dispatcher, "SrcName")?,
            source_type: text_field(dispatcher, "SrcType")?,
            application_type: text_field(dispatcher, "ApplicationType")?,
        });
    }
    match kind {
        ClientKind::Host => None,
        ClientKind::Proxy => {
            let facts = &info.catalog_service_facts;
            Some(Source {
                source_ref: client_id.as_str().to_owned(),
                display_name: client_id.as_str().to_owned(),
                source_type: text_field(facts, "source_type")?,
                application_type: text_field(facts, "application_type")?,
            })
        }
    }
}

/// Returns a string field. Returns `None` if the field is blank or too long. A blank `source_ref`
/// must not be sent, because it would match every source without a `source_ref`.
fn text_field(object: &Value, key: &str) -> Option<String> {
    let text = object.get(key)?.as_str()?;
    let is_valid = !text.trim().is_empty() && text.len() <= MAX_SOURCE_FIELD_BYTES;
    is_valid.then(|| text.to_owned())
}

#[derive(Serialize)]
struct BulkCreateRequest<'a> {
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

/// Builds the request body that creates a source with its application and its endpoint. The
/// endpoint is the client.
pub(super) fn bulk_create_body(source: &Source, client: &ClientId) -> Vec<u8> {
    let source_name = source.display_name.as_str();
    let request = BulkCreateRequest {
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
    // Serializing strings to memory cannot fail.
    serde_json::to_vec(&request).unwrap_or_default()
}

/// Result of a registration request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistrationOutcome {
    /// The service already has the source.
    AlreadyExists,
    /// The service created the source.
    Created,
    /// The service rejected the source, so a retry is useless. Contains the start of the response
    /// body.
    Rejected(String),
    /// The service gave no usable response. Contains the reason.
    Failed(String),
}

/// `sources.url` is invalid.
#[derive(Debug, thiserror::Error)]
#[error(
    "sources.url: {url:?} is not a valid URL: {problem}; \
     example: \"http://sources.example:8000\", or set it to \"\" to register nothing"
)]
pub struct SourcesError {
    /// The configured URL.
    pub url: String,
    /// Why the URL is invalid.
    pub problem: String,
}

/// HTTP client of the sources service.
pub struct SourcesClient {
    pub(super) list_url: reqwest::Url,
    create_url: reqwest::Url,
    http: reqwest::Client,
}

impl SourcesClient {
    /// Creates a client. `timeout` applies to each request.
    ///
    /// # Errors
    /// If the URL is invalid.
    pub fn new(url: &str, timeout: Duration) -> Result<Self, SourcesError> {
        let url_error = |problem: String| SourcesError {
            url: url.to_owned(),
            problem,
        };
        let http = http_client::client_builder(timeout).build();
        let http = http.map_err(|error| url_error(error.to_string()))?;
        let api_url = |path: [&str; 2]| {
            let path = [&["api", "sources"], &path[..]].concat();
            http_client::join_path(url, &path).map_err(url_error)
        };
        Ok(Self {
            list_url: api_url(["v3.0", "sources"])?,
            create_url: api_url(["v3.1", "bulk_create"])?,
            http,
        })
    }

    /// Creates the source, unless the service already has the source. All requests contain the
    /// client's identity.
    pub async fn register(
        &self,
        identity: &Identity,
        source: &Source,
        client: &ClientId,
    ) -> RegistrationOutcome {
        // The list request and the create request have the same request id, so a log search finds
        // both requests.
        let request_id = Uuid::new_v4().simple().to_string();
        let mut list_url = self.list_url.clone();
        list_url
            .query_pairs_mut()
            .append_pair("source_ref", &source.source_ref);
        let list_request = self.http.get(list_url);
        let list_response =
            send_with_identity(list_request, identity, &request_id, MAX_LIST_RESPONSE_BYTES).await;
        match list_response.and_then(|(status, body)| list_contains_source(status, &body)) {
            Ok(true) => return RegistrationOutcome::AlreadyExists,
            Ok(false) => {}
            Err(reason) => return RegistrationOutcome::Failed(reason),
        }
        let create_request = self.http.post(self.create_url.clone());
        let create_request = create_request
            .header("content-type", "application/json")
            .body(bulk_create_body(source, client));
        let create_response = send_with_identity(
            create_request,
            identity,
            &request_id,
            MAX_CREATE_RESPONSE_BYTES,
        );
        match create_response.await {
            Ok((status, body)) => classify_create_response(status, &body),
            Err(reason) => RegistrationOutcome::Failed(reason),
        }
    }
}

/// Sends a request with the client's identity. Returns the status and at most `max_bytes` of the
/// body.
async fn send_with_identity(
    request: reqwest::RequestBuilder,
    identity: &Identity,
    request_id: &str,
    max_bytes: usize,
) -> Result<(u16, Vec<u8>), String> {
    let identity = HeaderValue::from_str(identity.to_base64());
    let mut identity = identity.map_err(|error| error.to_string())?;
    identity.set_sensitive(true);
    let request = request
        .header("x-rh-identity", identity)
        .header("x-rh-insights-request-id", request_id);
    let response = http_client::send(request, max_bytes).await;
    response.map_err(describe_error)
}

/// Formats an error. Omits the URL, which may contain a password. Adds the causes, which `Display`
/// omits.
fn describe_error(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Returns whether a list response contains a source. Returns an error for an unexpected response.
/// If such a response counted as an empty list, the source could be created twice.
fn list_contains_source(status: u16, body: &[u8]) -> Result<bool, String> {
    if status != 200 {
        return Err(format!("the list request returned status {status}"));
    }
    let body: Option<Value> = serde_json::from_slice(body).ok();
    match body.as_ref().and_then(|body| body.get("data")?.as_array()) {
        Some(data) => Ok(!data.is_empty()),
        None => Err("the list response has no data array".to_owned()),
    }
}

fn classify_create_response(status: u16, body: &[u8]) -> RegistrationOutcome {
    match status {
        201 => RegistrationOutcome::Created,
        400 => RegistrationOutcome::Rejected(String::from_utf8_lossy(body).into_owned()),
        _ => RegistrationOutcome::Failed(format!("the create request returned status {status}")),
    }
}
