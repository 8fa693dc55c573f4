//! For probes and scrapers: outside the base path, without authentication.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Map, Value, json};

use super::Probes;
use super::json::Json;

type SharedState = Arc<Probes>;

/// Asked all the time, by machines.
pub(super) const ROUTES: [&str; 3] = ["/liveness", "/readiness", "/metrics"];

pub(super) fn router() -> Router<SharedState> {
    Router::new()
        .route(ROUTES[0], get(liveness))
        .route(ROUTES[1], get(readiness))
        .route(ROUTES[2], get(metrics))
}

/// The process runs. Says nothing about anything outside it.
async fn liveness() -> Response {
    Json(json!({"alive": true})).into_response()
}

/// Every part is asked now; each says for itself.
async fn readiness(State(shared): State<SharedState>) -> Response {
    let verdicts = shared.health.ask().await;
    let ready = verdicts.values().all(Result::is_ok);
    let notes = shared.health.notes();
    let notes = notes
        .into_iter()
        .map(|(part, said)| (part.to_owned(), said.into()));
    let parts: Map<String, Value> = verdicts
        .into_iter()
        .map(|(part, verdict)| {
            let said = verdict.map_or_else(|problem| problem, |()| "ok".to_owned());
            (part.to_owned(), said.into())
        })
        .chain(notes)
        .collect();
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(json!({"ready": ready, "parts": parts}))).into_response()
}

/// Prometheus' text format.
async fn metrics(State(shared): State<SharedState>) -> Response {
    let kind = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    (kind, (shared.render_metrics)()).into_response()
}
