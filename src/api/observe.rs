//! What happens around every request: its id, its time limit, its line in the log.

use std::net::SocketAddr;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;
use tracing::{Instrument as _, field};
use uuid::Uuid;

use super::error::ApiError;
use super::{AccessLog, Timeout, health};
use crate::telemetry::{metrics, request_id};

/// Lines of this target are the access log.
const ACCESS: &str = "cloud_connector::access";

const REQUEST_ID: HeaderName = HeaderName::from_static("x-rh-insights-request-id");
const REQUEST_ID_MAX: usize = 128;

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub SocketAddr);

/// Takes over or makes the request's id, and counts and logs the request when it is answered.
pub(super) async fn observe(
    State(AccessLog(has_access_log)): State<AccessLog>,
    request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let (header, id) = taken_over(&request).unwrap_or_else(made);
    // The pattern, not the path: there are as many paths as clients.
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("none", |matched| matched.as_str());
    let access = (has_access_log && !health::ROUTES.contains(&route)).then(|| Access::of(&request));
    let span = tracing::info_span!(
        "request",
        request_id = id,
        caller = field::Empty,
        tenant = field::Empty,
    );
    let answering = next.run(request).instrument(span.clone());
    let mut response = request_id::scope(id, answering).await;
    let took = started.elapsed();
    let status = response.status().as_u16();
    metrics::request(route, status, took);
    if let Some(access) = access {
        span.in_scope(|| access.log(status, took.as_secs_f64() * 1e3));
    }
    response.headers_mut().insert(REQUEST_ID, header);
    response
}

/// What the access log says of a request. Neither its query nor its headers: secrets may stand there.
struct Access {
    method: axum::http::Method,
    path: String,
    peer: Option<SocketAddr>,
}

impl Access {
    fn of(request: &Request) -> Self {
        Self {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            peer: request.extensions().get().map(|Peer(peer)| *peer),
        }
    }

    fn log(&self, status: u16, took_ms: f64) {
        let Self { method, path, peer } = self;
        let peer = peer.map(field::display);
        tracing::info!(target: ACCESS, %method, path, status, took_ms, peer, "answered");
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

/// A request that takes too long is given up.
pub(super) async fn within(
    State(Timeout(limit)): State<Timeout>,
    request: Request,
    next: Next,
) -> Response {
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "Service unavailable",
            "The request took too long; try again",
        )
        .into_response(),
    }
}
