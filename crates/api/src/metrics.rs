//! Metrics of the HTTP server.

use std::time::Duration;

use metrics::{counter, describe_counter, describe_histogram, histogram};

use super::auth::FailureReason;

const HTTP_REQUESTS: &str = "cloud_connector_http_requests_total";
const HTTP_REQUEST_DURATION: &str = "cloud_connector_http_request_duration_seconds";
const AUTH_FAILURES: &str = "cloud_connector_http_auth_failures_total";

/// Registers the help texts of these metrics. Call this function after the metrics recorder is
/// installed, because earlier registrations are discarded.
pub fn describe() {
    describe_counter!(HTTP_REQUESTS, "HTTP requests, by route and status");
    describe_histogram!(
        HTTP_REQUEST_DURATION,
        "Time from receiving an HTTP request to its response, by route"
    );
    describe_counter!(
        AUTH_FAILURES,
        "HTTP requests that were not authenticated, by reason"
    );
    for reason in FailureReason::ALL {
        counter!(AUTH_FAILURES, "reason" => reason.as_str()).increment(0);
    }
}

/// Counts a request that was not authenticated.
pub(super) fn count_auth_failure(reason: FailureReason) {
    counter!(AUTH_FAILURES, "reason" => reason.as_str()).increment(1);
}

/// Records the status and the duration of an HTTP request. `route` is the route pattern, not the
/// path, because the number of different paths is unbounded.
pub fn observe_http_request(route: &str, status: u16, duration: Duration) {
    counter!(HTTP_REQUESTS, "route" => route.to_owned(), "status" => status.to_string())
        .increment(1);
    histogram!(HTTP_REQUEST_DURATION, "route" => route.to_owned()).record(duration);
}
