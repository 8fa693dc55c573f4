//! Metrics of the periodic jobs, and the connection counts that the jobs measure.

use integrations::events::SendResult;
use metrics::{counter, describe_counter, describe_gauge, gauge};

const CONNECTIONS: &str = "cloud_connector_connections";
const TENANTLESS_CONNECTIONS: &str = "cloud_connector_tenantless_connections";
const OLDEST_TENANTLESS_LOOKUP_AGE: &str = "cloud_connector_tenantless_oldest_lookup_age_seconds";
const UPDATER_RUNS: &str = "cloud_connector_updater_runs_total";
const EVENTS_FORWARDED: &str = "cloud_connector_events_forwarded_total";
const EVENT_FORWARD_LAG: &str = "cloud_connector_events_forward_lag";

const LIVENESS_PINGS: &str = "cloud_connector_liveness_pings_total";
const LIVENESS_ANSWERS: &str = "cloud_connector_liveness_answers_total";
const LIVENESS_EXPIRED: &str = "cloud_connector_liveness_expired_total";
const LIVENESS_SUPPRESSED: &str = "cloud_connector_liveness_suppressed_total";
const LIVENESS_SILENT: &str = "cloud_connector_liveness_silent_connections";

/// Registers the help texts of these metrics. Call this function after the metrics recorder is
/// installed, because earlier registrations are discarded.
pub fn describe() {
    describe_gauge!(CONNECTIONS, "Connected clients that have a tenant");
    describe_gauge!(
        TENANTLESS_CONNECTIONS,
        "Connected clients without a tenant, by state: pending (lookup is retried) or gave_up"
    );
    describe_gauge!(
        OLDEST_TENANTLESS_LOOKUP_AGE,
        "Longest time since the latest tenant lookup, of all clients in the state pending"
    );
    describe_counter!(UPDATER_RUNS, "Runs of periodic jobs, by job and outcome");
    describe_counter!(
        EVENTS_FORWARDED,
        "Events sent to Kafka, by outcome: delivered, too_large or failed (sent again)"
    );
    describe_gauge!(
        EVENT_FORWARD_LAG,
        "Events that are not yet forwarded to Kafka, in the process that forwards events"
    );
    describe_counter!(
        LIVENESS_PINGS,
        "Pings of the liveness sweep, by outcome: sent or failed (the broker did not accept the ping)"
    );
    describe_counter!(
        LIVENESS_ANSWERS,
        "Silent clients that answered the liveness sweep, or whose handshake is retained"
    );
    describe_counter!(
        LIVENESS_EXPIRED,
        "Connections that the liveness sweep ended, because the client did not answer"
    );
    describe_counter!(
        LIVENESS_SUPPRESSED,
        "Connections without an answer that the liveness sweep did not end, by reason: guard (most \
         clients did not answer), recording_behind, ingest_unavailable or broker_unavailable"
    );
    describe_gauge!(
        LIVENESS_SILENT,
        "Silent connections that the latest pass of the liveness sweep found"
    );
    for reason in [
        "guard",
        "recording_behind",
        "ingest_unavailable",
        "broker_unavailable",
    ] {
        counter!(LIVENESS_SUPPRESSED, "reason" => reason).increment(0);
    }
    for outcome in ["sent", "failed"] {
        counter!(LIVENESS_PINGS, "outcome" => outcome).increment(0);
    }
    counter!(LIVENESS_ANSWERS).increment(0);
    counter!(LIVENESS_EXPIRED).increment(0);
}

/// Sets the numbers of connected clients with and without a tenant.
///
/// `pending_count` is the number of tenantless clients whose lookup will be retried.
/// `gave_up_count` is the number of tenantless clients that reached the maximum number of lookup
/// attempts.
/// `oldest_lookup_age` is the largest lookup age of all pending clients. The lookup age of a client
/// is the time since its latest lookup.
pub fn set_connection_counts(
    with_tenant_count: u64,
    pending_count: u64,
    gave_up_count: u64,
    oldest_lookup_age: Option<jiff::SignedDuration>,
) {
    gauge!(CONNECTIONS).set(with_tenant_count as f64);
    gauge!(TENANTLESS_CONNECTIONS, "state" => "pending").set(pending_count as f64);
    gauge!(TENANTLESS_CONNECTIONS, "state" => "gave_up").set(gave_up_count as f64);
    let age_seconds = oldest_lookup_age.map_or(0.0, |age| age.as_secs_f64().max(0.0));
    gauge!(OLDEST_TENANTLESS_LOOKUP_AGE).set(age_seconds);
}

/// Counts a finished run of a periodic job.
pub fn count_job_run(job_name: &'static str, has_failed: bool) {
    let outcome = if has_failed { "failed" } else { "succeeded" };
    counter!(UPDATER_RUNS, "updater" => job_name, "outcome" => outcome).increment(1);
}

/// Counts an event that was sent to Kafka.
pub fn count_forwarded_event(result: SendResult) {
    let outcome = match result {
        SendResult::Delivered => "delivered",
        SendResult::TooLarge => "too_large",
        SendResult::Failed => "failed",
    };
    counter!(EVENTS_FORWARDED, "outcome" => outcome).increment(1);
}

/// Sets the number of events that are not yet forwarded.
pub fn set_event_forward_lag(event_count: u64) {
    gauge!(EVENT_FORWARD_LAG).set(event_count as f64);
}

/// Counts a ping of the liveness sweep.
pub fn count_liveness_ping(is_sent: bool) {
    let outcome = if is_sent { "sent" } else { "failed" };
    counter!(LIVENESS_PINGS, "outcome" => outcome).increment(1);
}

/// Counts silent clients that answered.
pub fn count_liveness_answers(count: u64) {
    counter!(LIVENESS_ANSWERS).increment(count);
}

/// Counts connections that the liveness sweep ended.
pub fn count_liveness_expired(count: u64) {
    counter!(LIVENESS_EXPIRED).increment(count);
}

/// Counts connections without an answer that were not ended.
pub fn count_liveness_suppressed(reason: &'static str, count: u64) {
    counter!(LIVENESS_SUPPRESSED, "reason" => reason).increment(count);
}

/// Sets the number of silent connections.
pub fn set_silent_connections(count: u64) {
    gauge!(LIVENESS_SILENT).set(count as f64);
}
