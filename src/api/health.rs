//! `/liveness`, `/readiness` and `/metrics`: outside the base path, without authentication.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Map, Value, json};

use super::ProbeState;
use super::json::Json;

type SharedProbeState = Arc<ProbeState>;

/// Paths that the access log omits, because monitoring requests them every few seconds.
pub(super) const PROBE_PATHS: [&str; 3] = ["/liveness", "/readiness", "/metrics"];

pub(super) fn router() -> Router<SharedProbeState> {
    Router::new()
        .route(PROBE_PATHS[0], get(liveness))
        .route(PROBE_PATHS[1], get(readiness))
        .route(PROBE_PATHS[2], get(metrics))
}

/// Reports that the process runs. Does not check the database, the broker or other services.
async fn liveness() -> Response {
    Json(json!({"alive": true})).into_response()
}

/// Runs every health check and reports each result. Responds 503 if one of them fails.
async fn readiness(State(probes): State<SharedProbeState>) -> Response {
    let results = probes.health.check().await;
    let is_ready = results.values().all(Result::is_ok);
    // Informational entries do not affect readiness.
    let info = probes.health.info();
    let info = info
        .into_iter()
        .map(|(component, text)| (component.as_str().to_owned(), text.into()));
    let components: Map<String, Value> = results
        .into_iter()
        .map(|(component, result)| {
            let text = result.map_or_else(|problem| problem, |()| "ok".to_owned());
            (component.as_str().to_owned(), text.into())
        })
        .chain(info)
        .collect();
    let status = if is_ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let body = json!({"ready": is_ready, "components": components});
    (status, Json(body)).into_response()
}

/// Renders all metrics in the Prometheus text format.
async fn metrics(State(probes): State<SharedProbeState>) -> Response {
    let content_type = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    (content_type, (probes.render_metrics)()).into_response()
}
