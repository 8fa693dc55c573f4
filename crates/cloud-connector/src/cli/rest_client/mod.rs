//! The REST client of the commands: finds the connector and the API key, sends requests, and
//! explains errors. Each error names the cause and the fix.

mod discovery;
mod error;
mod profiles;
pub(super) mod sse;
mod status_error;

use std::path::Path;
use std::time::Duration;

use clap::Args;
use reqwest::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::Value;

use super::escape_for_terminal;
use crate::config::CliEnvironment;
use discovery::{Target, find_target, given_target};
use network::http_client::{client_builder, join_path};
use service::settings::ExposeSecret as _;
use status_error::status_error;

pub(super) use discovery::{GivenKey, RestOptions, read_key_file};
pub(super) use error::RestError;
pub(super) use profiles::{DEFAULT_PROFILE, Profile, save_profile};

const KEY_NAME_HEADER: &str = "x-rh-cloud-connector-client-id";
const KEY_HEADER: &str = "x-rh-cloud-connector-psk";
const ORG_ID_HEADER: &str = "x-rh-cloud-connector-org-id";

/// Longer than the default of `http.request_timeout`, so the connector responds first.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(40);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A stream of events has no end. Its request has a timeout only because the client requires one.
const STREAM_TIMEOUT: Duration = Duration::from_hours(24);
/// The connector sends at least a comment every 15 seconds on a stream of events.
const STREAM_READ_TIMEOUT: Duration = Duration::from_secs(45);
const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;

/// The organization of a command that shows one organization.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Connector and API key")]
pub(super) struct OrgOption {
    /// Organization [default: the organization of the profile, or tenant.default_org_id of the
    /// connector on this machine] [environment: CLOUD_CONNECTOR_ORG]
    #[arg(long = "org", value_name = "ORG")]
    org_id: Option<String>,
}

/// The scope that a request needs.
#[derive(Debug, Clone, Copy)]
pub(super) enum RequestScope<'a> {
    /// All organizations.
    Management,
    /// One organization.
    Tenant {
        /// The organization.
        org_id: &'a str,
    },
}

impl RequestScope<'_> {
    fn name(self) -> &'static str {
        match self {
            Self::Management => "management",
            Self::Tenant { .. } => "tenant",
        }
    }
}

/// Sends requests to one connector.
pub(super) struct RestClient {
    http: reqwest::Client,
    target: Target,
}

impl RestClient {
    /// Finds the connector and the API key. Does not connect.
    pub(super) fn new(
        options: &RestOptions,
        environment: &CliEnvironment,
    ) -> Result<Self, RestError> {
        Self::of_target(find_target(options, environment)?)
    }

    /// Uses this address and this key, for `login`. Does not connect.
    pub(super) fn with_key(
        url: &str,
        key_name: &str,
        key: &GivenKey,
        ca_file: Option<&Path>,
    ) -> Result<Self, RestError> {
        Self::of_target(given_target(url, key_name, key, ca_file)?)
    }

    /// Returns the URL of the REST API, with the base path.
    pub(super) fn url(&self) -> &str {
        &self.target.url
    }

    fn of_target(target: Target) -> Result<Self, RestError> {
        let mut builder = client_builder(REQUEST_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(STREAM_READ_TIMEOUT);
        if target.is_local {
            // A proxy cannot reach the connector at a loopback address.
            builder = builder.no_proxy();
        }
        if let Some(file) = &target.ca_file {
            builder = builder.tls_certs_merge(read_ca_certificates(file)?);
        }
        let http = builder.build().map_err(|error| {
            RestError::Failed(format!(
                "cannot create the HTTP client: {}; check the CA certificates of this machine",
                root_cause(&error)
            ))
        })?;
        Ok(Self { http, target })
    }

    /// Returns the organization of a command that shows one organization.
    pub(super) fn org_id(
        &self,
        option: &OrgOption,
        environment: &CliEnvironment,
    ) -> Result<String, RestError> {
        let org_id = option.org_id.as_ref();
        let org_id = org_id.or(environment.org_id.as_ref());
        let org_id = org_id.or(self.target.org_id.as_ref());
        org_id.cloned().ok_or_else(|| {
            RestError::Usage(
                "the organization is not known; give --org ORG, or set CLOUD_CONNECTOR_ORG"
                    .to_owned(),
            )
        })
    }

    /// Sends a GET request. `path` contains the segments after the base path. Returns the JSON body.
    pub(super) async fn get_json(
        &self,
        scope: RequestScope<'_>,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<Value, RestError> {
        let request = self.request(Method::GET, scope, path, query)?;
        self.send(request, scope, path).await
    }

    /// Sends a POST request with a JSON body, or without a body. Returns the JSON body of the response.
    pub(super) async fn post_json(
        &self,
        scope: RequestScope<'_>,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<String>,
    ) -> Result<Value, RestError> {
        let mut request = self.request(Method::POST, scope, path, query)?;
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body);
        }
        self.send(request, scope, path).await
    }

    async fn send(
        &self,
        request: RequestBuilder,
        scope: RequestScope<'_>,
        path: &[&str],
    ) -> Result<Value, RestError> {
        let request = request.header("accept", "application/json");
        let response = request.send().await.map_err(|e| self.unreachable(&e))?;
        let response = self.check_status(response, scope, path).await?;
        let body = self.read_body(response).await?;
        serde_json::from_slice(&body).map_err(|error| {
            RestError::Failed(format!(
                "the response of {} is not JSON: {error}; check that --url is the URL of a \
                 connector",
                self.target.url
            ))
        })
    }

    /// Opens a stream of events. `last_event_id` is the position after which the stream begins.
    pub(super) async fn open_event_stream(
        &self,
        scope: RequestScope<'_>,
        path: &[&str],
        query: &[(&str, &str)],
        last_event_id: Option<&str>,
    ) -> Result<EventStream<'_>, RestError> {
        let mut request = self
            .request(Method::GET, scope, path, query)?
            .timeout(STREAM_TIMEOUT)
            .header("accept", "text/event-stream");
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let response = request.send().await.map_err(|e| self.unreachable(&e))?;
        let response = self.check_status(response, scope, path).await?;
        let content_type = response.headers().get("content-type");
        let content_type = content_type.and_then(|value| value.to_str().ok());
        if !content_type.is_some_and(|value| value.starts_with("text/event-stream")) {
            return Err(RestError::Failed(format!(
                "the response of {} is not a stream of events; check that --url is the URL of a \
                 connector",
                self.target.url
            )));
        }
        Ok(EventStream {
            client: self,
            response,
            parser: sse::Parser::default(),
        })
    }

    fn request(
        &self,
        method: Method,
        scope: RequestScope<'_>,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<RequestBuilder, RestError> {
        let target = &self.target;
        // The URL standard removes these segments, so the request would have another path.
        if path.iter().any(|segment| matches!(*segment, "." | "..")) {
            return Err(RestError::Usage(
                "the ids \".\" and \"..\" cannot be part of a URL; use another id".to_owned(),
            ));
        }
        let mut url = join_path(&target.url, path).map_err(|problem| {
            RestError::Usage(format!(
                "the URL {} (from {}) is invalid: {problem}; correct it",
                target.url, target.url_origin
            ))
        })?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut key = header_value("API key", target.key.expose_secret())?;
        key.set_sensitive(true);
        let mut headers = HeaderMap::new();
        headers.insert(KEY_HEADER, key);
        headers.insert(KEY_NAME_HEADER, header_value("key name", &target.key_name)?);
        if let RequestScope::Tenant { org_id } = scope {
            headers.insert(ORG_ID_HEADER, header_value("organization", org_id)?);
        }
        Ok(self.http.request(method, url).headers(headers))
    }

    /// Returns the response if its status is 2xx, otherwise an error that explains the status.
    async fn check_status(
        &self,
        response: Response,
        scope: RequestScope<'_>,
        path: &[&str],
    ) -> Result<Response, RestError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after = response.headers().get(RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
        // If the body cannot be read, the status alone explains the error.
        let body = self.read_body(response).await.unwrap_or_default();
        Err(status_error(
            &self.target,
            scope,
            path,
            status,
            retry_after,
            &body,
        ))
    }

    async fn read_body(&self, mut response: Response) -> Result<Vec<u8>, RestError> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| self.unreachable(&e))? {
            if body.len() + chunk.len() > MAX_BODY_BYTES {
                return Err(RestError::Failed(format!(
                    "the response of {} is larger than {MAX_BODY_BYTES} bytes; request less",
                    self.target.url
                )));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// Returns the error for a request without a complete response.
    fn unreachable(&self, error: &reqwest::Error) -> RestError {
        let target = &self.target;
        let fix = if target.is_local {
            "check the log of the connector, and that this user may connect"
        } else {
            "check the URL, and that the connector runs and accepts connections from this machine"
        };
        let tls_hint = if target.url.starts_with("https:") && error.is_connect() {
            "; if a private CA issued its certificate, give --ca FILE; the host name in the URL must \
             be in the certificate"
        } else {
            ""
        };
        RestError::Unreachable(format!(
            "cannot reach the connector at {} (from {}): {}; {fix}{tls_hint}",
            target.url,
            target.url_origin,
            root_cause(error)
        ))
    }
}

/// An open stream of events.
pub(super) struct EventStream<'a> {
    client: &'a RestClient,
    response: Response,
    parser: sse::Parser,
}

impl EventStream<'_> {
    /// Waits for the next part of the stream. Returns its complete items, which can be none.
    /// Returns `None` if the connector has closed the stream.
    pub(super) async fn next_items(&mut self) -> Result<Option<Vec<sse::Item>>, RestError> {
        let chunk = self.response.chunk().await;
        let Some(chunk) = chunk.map_err(|error| self.client.unreachable(&error))? else {
            return Ok(None);
        };
        let items = self.parser.push(&chunk);
        items.map(Some).map_err(|error| {
            RestError::Failed(format!(
                "cannot read the events of {}: {error}; check that --url is the URL of a connector",
                self.client.target.url
            ))
        })
    }
}

fn header_value(name: &str, value: &str) -> Result<HeaderValue, RestError> {
    HeaderValue::from_str(value).map_err(|_| {
        RestError::Usage(format!(
            "the {name} contains characters that are not allowed in an HTTP header; correct it"
        ))
    })
}

fn read_ca_certificates(file: &Path) -> Result<Vec<reqwest::Certificate>, RestError> {
    let invalid = |problem: String| {
        RestError::Usage(format!(
            "cannot use the CA certificates in {}: {problem}; give a PEM file with --ca",
            file.display()
        ))
    };
    let text = std::fs::read(file).map_err(|error| invalid(error.to_string()))?;
    let certificates = reqwest::Certificate::from_pem_bundle(&text);
    let certificates = certificates.map_err(|error| invalid(root_cause(&error)))?;
    if certificates.is_empty() {
        return Err(invalid("the file contains no certificate".to_owned()));
    }
    Ok(certificates)
}

/// Returns the text of the innermost cause, for example `Connection refused (os error 111)`. The
/// outer errors only repeat the URL.
fn root_cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no response in time".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    escape_for_terminal(&cause.to_string())
}
