//! What happens around every request: its id, its time limit, its line in the log.

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;
use tracing::{Instrument as _, field};
use uuid::Uuid;

use super::Timeout;
use super::error::ApiError;
use crate::telemetry::metrics;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-rh-insights-request-id");
const REQUEST_ID_MAX: usize = 128;

/// Takes over or makes the request's id, and counts and logs the request when it is answered.
pub(super) async fn observe(request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request
        .headers()
        .get(REQUEST_ID)
        .filter(|id| !id.is_empty() && id.len() <= REQUEST_ID_MAX)
        .cloned()
        .unwrap_or_else(made);
    let method = request.method().clone();
    // The pattern, not the path: there are as many paths as clients.
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("none", |matched| matched.as_str())
        .to_owned();
    let span = tracing::info_span!(
        "request",
        request_id = id.to_str().unwrap_or_default(),
        caller = field::Empty,
        tenant = field::Empty,
    );
    let mut response = next.run(request).instrument(span.clone()).await;
    let took = started.elapsed();
    let status = response.status().as_u16();
    metrics::request(&route, status, took);
    span.in_scope(|| tracing::debug!(%method, route, status, ?took, "answered"));
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

fn made() -> HeaderValue {
    HeaderValue::from_str(&Uuid::new_v4().simple().to_string())
        .unwrap_or_else(|_| HeaderValue::from_static("none"))
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
