//! For probes and scrapers: outside the base path, without authentication.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::Shared;
use super::json::Json;

/// The process runs. Says nothing about anything outside it.
pub(super) async fn liveness() -> Response {
    Json(json!({"alive": true})).into_response()
}

/// Every part is asked now; each says for itself.
pub(super) async fn readiness(State(shared): State<Shared>) -> Response {
    let verdicts = shared.health.ask().await;
    let ready = verdicts.values().all(Result::is_ok);
    let parts: Map<String, Value> = verdicts
        .into_iter()
        .map(|(part, verdict)| {
            let said = verdict.map_or_else(|problem| problem, |()| "ok".to_owned());
            (part.to_owned(), said.into())
        })
        .collect();
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(json!({"ready": ready, "parts": parts}))).into_response()
}

/// Prometheus' text format.
pub(super) async fn metrics(State(shared): State<Shared>) -> Response {
    let kind = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    (kind, (shared.render_metrics)()).into_response()
}
