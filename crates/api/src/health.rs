//! The endpoints `/liveness`, `/readiness` and `/metrics`. They are outside the base path of the
//! API and require no authentication.

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

/// Paths of the probe endpoints. The access log omits requests to these paths, because monitoring
/// systems send these requests every few seconds.
pub(super) const PROBE_PATHS: [&str; 3] = ["/liveness", "/readiness", "/metrics"];

pub(super) fn router() -> Router<SharedProbeState> {
    Router::new()
        .route(PROBE_PATHS[0], get(liveness))
        .route(PROBE_PATHS[1], get(readiness))
        .route(PROBE_PATHS[2], get(metrics))
}

/// Reports that the process is running. Does not check the database, the broker or other services.
async fn liveness() -> Response {
    Json(json!({"alive": true})).into_response()
}

/// Reports the result of each health check. Responds 503 if a check fails. The results of the checks
/// are up to one second old. The response contains no error texts, because the caller is not
/// authenticated: the log contains them.
async fn readiness(State(probes): State<SharedProbeState>) -> Response {
    let check_results = probes.health.run_checks().await;
    let is_ready = check_results.values().all(Result::is_ok);
    // The response also lists components that have a description instead of a health check. These
    // components do not affect readiness.
    let descriptions = probes.health.descriptions();
    let descriptions = descriptions
        .into_iter()
        .map(|(component, text)| (component.to_owned(), text.into()));
    let components: Map<String, Value> = check_results
        .into_iter()
        .map(|(component, result)| {
            let text = match result {
                Ok(()) => probes.health.healthy_text(component).into(),
                Err(cause) => cause,
            };
            (component.to_owned(), text.into())
        })
        .chain(descriptions)
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
