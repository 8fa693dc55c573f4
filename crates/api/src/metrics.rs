//! Metrics of the HTTP server.

use std::time::Duration;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use super::auth::FailureReason;
use super::v2::events::ResetReason;

const HTTP_REQUESTS: &str = "cloud_connector_http_requests_total";
const HTTP_REQUEST_DURATION: &str = "cloud_connector_http_request_duration_seconds";
const AUTH_FAILURES: &str = "cloud_connector_http_auth_failures_total";
const EVENT_STREAMS: &str = "cloud_connector_event_streams";
const EVENTS_SENT: &str = "cloud_connector_events_sent_total";
const EVENT_STREAM_RESETS: &str = "cloud_connector_event_stream_resets_total";

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
    describe_gauge!(EVENT_STREAMS, "Open event streams");
    describe_counter!(EVENTS_SENT, "Events sent to event streams");
    describe_counter!(
        EVENT_STREAM_RESETS,
        "Event streams whose caller must list the connections again, by reason"
    );
    for reason in ResetReason::ALL {
        counter!(EVENT_STREAM_RESETS, "reason" => reason.as_str()).increment(0);
    }
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

/// Sets the number of open event streams.
pub(super) fn set_event_streams(stream_count: usize) {
    gauge!(EVENT_STREAMS).set(stream_count as f64);
}

/// Counts events that were sent to an event stream.
pub(super) fn count_events_sent(event_count: u64) {
    counter!(EVENTS_SENT).increment(event_count);
}

/// Counts an event stream whose caller must list the connections again.
pub(super) fn count_event_stream_reset(reason: ResetReason) {
    counter!(EVENT_STREAM_RESETS, "reason" => reason.as_str()).increment(1);
}
