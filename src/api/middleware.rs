//! What happens around every request: its id, its limits, its line in the log.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt as _;
use tokio::time::Instant;
use tracing::field;
use uuid::Uuid;

use super::error::ApiError;
use super::{body_timeout, health};
use crate::config::Http;
use crate::telemetry::{metrics, request_id};

/// Lines of this target are the access log.
const ACCESS: &str = "cloud_connector::access";

const REQUEST_ID: HeaderName = HeaderName::from_static("x-rh-insights-request-id");
const REQUEST_ID_MAX: usize = 128;

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub SocketAddr);

/// Who is calling, and for whom: told by whoever finds it out, for the line in the log.
#[derive(Clone, Default)]
pub(super) struct AccessLogContext(Arc<OnceLock<(String, String)>>);

impl AccessLogContext {
    pub fn note(&self, caller: &str, tenant: &str) {
        // Found out once a request.
        let _ = self.0.set((caller.to_owned(), tenant.to_owned()));
    }
}

/// What holds for every request.
#[derive(Debug, Clone, Copy)]
pub(super) struct HttpLimits {
    pub max_body_bytes: usize,
    pub within: Duration,
    pub has_access_log: bool,
}

impl HttpLimits {
    pub fn of(http: &Http) -> Self {
        Self {
            max_body_bytes: http.max_body_bytes,
            within: http.request_timeout.get(),
            has_access_log: http.access_log,
        }
    }
}

/// Takes over or makes the request's id, bounds what it may take, and counts and logs it when it is
/// answered. One layer for all of it: each would cost every request its own allocations.
pub(super) async fn observe(
    State(terms): State<HttpLimits>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let (header, id) = taken_over(&request).unwrap_or_else(made);
    // The pattern, not the path: there are as many paths as clients.
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("none", |matched| matched.as_str());
    let has_line = terms.has_access_log && !health::ROUTES.contains(&route);
    let access = has_line.then(|| AccessLogEntry::of(&request));
    if let Some(access) = &access {
        request.extensions_mut().insert(access.noted.clone());
    }
    DefaultBodyLimit::max(terms.max_body_bytes).apply(&mut request);
    let answering = within(terms.within, next.run(body_timeout::timed(request)));
    let mut response = request_id::scope(id, answering).await;
    let took = started.elapsed();
    let status = response.status().as_u16();
    metrics::request(route, status, took);
    if let Some(access) = access {
        let id = header.to_str().unwrap_or_default();
        access.log(id, status, took.as_secs_f64() * 1e3);
    }
    response.headers_mut().insert(REQUEST_ID, header);
    response
}

/// A request that takes too long is given up; a bug of ours costs one request, not the process.
async fn within(limit: Duration, answering: impl Future<Output = Response>) -> Response {
    let answering = AssertUnwindSafe(answering).catch_unwind();
    match tokio::time::timeout(limit, answering).await {
        Ok(Ok(response)) => response,
        Ok(Err(panic)) => ApiError::panicked(&*panic).into_response(),
        Err(_) => ApiError::unavailable("The request took too long; try again").into_response(),
    }
}

/// What the access log says of a request. Neither its query nor its headers: secrets may stand there.
struct AccessLogEntry {
    method: axum::http::Method,
    path: String,
    peer: Option<SocketAddr>,
    noted: AccessLogContext,
}

impl AccessLogEntry {
    fn of(request: &Request) -> Self {
        Self {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            peer: request.extensions().get().map(|Peer(peer)| *peer),
            noted: AccessLogContext::default(),
        }
    }

    fn log(&self, request_id: &str, status: u16, took_ms: f64) {
        let Self {
            method,
            path,
            peer,
            noted,
        } = self;
        let peer = peer.map(field::display);
        let (caller, tenant) = noted.0.get().cloned().unwrap_or_default();
        tracing::info!(
            target: ACCESS, request_id, caller, tenant, %method, path, status, took_ms,
            peer, "answered"
        );
    }
}

/// The caller's id of it, if it can stand in a log.
fn taken_over(request: &Request) -> Option<(HeaderValue, String)> {
    let header = request.headers().get(REQUEST_ID)?;
    let text = header.to_str().ok()?;
    let fits = !text.is_empty() && text.len() <= REQUEST_ID_MAX;
    fits.then(|| (header.clone(), text.to_owned()))
}

fn made() -> (HeaderValue, String) {
    let id = Uuid::new_v4().simple().to_string();
    let header = HeaderValue::from_str(&id);
    let header = header.unwrap_or_else(|_| HeaderValue::from_static("none"));
    (header, id)
}
