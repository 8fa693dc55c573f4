//! Sends a request to a client and waits for the response, for `ping` and `check`.

use std::time::Duration;

use axum::http::StatusCode;
use utoipa::IntoParams;

use super::invalid_request_error;
use crate::ApiState;
use crate::error::ApiError;
use crate::pagination::last_param_value;
use delivery::{ClientRequest, ReceivedResponse, RequestOutcome, SendError};
use domain::Connection;

const DEFAULT_RESPONSE_TIMEOUT_SECONDS: u64 = 5;
/// Maximum value of the query parameter `timeout`. The maximum is less than the default of
/// `http.request_timeout` (30 s), because the API responds 503 after `http.request_timeout`.
const MAX_RESPONSE_TIMEOUT_SECONDS: u64 = 25;

/// OpenAPI description of the query parameter `timeout`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only documents the parameter")]
pub(super) struct TimeoutParam {
    /// Number of seconds to wait for the client's response.
    #[param(minimum = 1, maximum = 25, default = 5)]
    timeout: Option<u8>,
}

/// Parses the query parameter `timeout`.
pub(super) fn parse_timeout(params: &[(String, String)]) -> Result<Duration, ApiError> {
    let seconds = match last_param_value(params, "timeout") {
        None | Some("") => Some(DEFAULT_RESPONSE_TIMEOUT_SECONDS),
        Some(text) => text.parse().ok(),
    };
    let seconds = seconds.filter(|seconds| (1..=MAX_RESPONSE_TIMEOUT_SECONDS).contains(seconds));
    let seconds = seconds.ok_or_else(|| {
        invalid_request_error(format!(
            "timeout must be an integer from 1 to {MAX_RESPONSE_TIMEOUT_SECONDS} (seconds)"
        ))
    })?;
    Ok(Duration::from_secs(seconds))
}

/// Sends a request to a client. Waits for the client's response until the timeout. `ack_timeout`
/// limits only the wait for the broker.
pub(super) async fn send_request(
    state: &ApiState,
    connection: &Connection,
    request: ClientRequest,
    ack_timeout: Duration,
    timeout: Duration,
    error_title: &'static str,
) -> Result<RequestOutcome, ApiError> {
    let outcome = state
        .delivery
        .request(connection, request, ack_timeout, timeout)
        .await;
    match outcome {
        Ok(Some(outcome)) => Ok(outcome),
        Ok(None) => Err(ApiError::new(
            StatusCode::CONFLICT,
            error_title,
            "The client's protocol dialect has no ping; \
             use check?level=3&directive=… to send a request to one of its applications",
        )),
        Err(SendError::NotConnected) => Err(ApiError::no_connection()),
        Err(error) => Err(ApiError::send_failed(error_title, error)),
    }
}

/// Returns the round-trip time in milliseconds, rounded to microseconds.
pub(super) fn round_trip_ms(response: &ReceivedResponse) -> f64 {
    (response.round_trip.as_secs_f64() * 1e6).round() / 1e3
}
