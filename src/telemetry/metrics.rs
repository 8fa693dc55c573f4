//! Defines all metrics of the process. Each metric has a name, a help text, and a function that
//! updates the metric.
//!
//! Some functions also write a log line. For events that clients can cause at a high rate, the log
//! line has level debug or is limited to one per second.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::LogThrottle;
use crate::domain::{ClientId, LookupStatus};
use crate::protocol::Rejection;

const MESSAGES_RECEIVED: &str = "cloud_connector_messages_received_total";
const MESSAGES_APPLIED: &str = "cloud_connector_messages_applied_total";
const MESSAGES_IGNORED: &str = "cloud_connector_messages_ignored_total";
const DEAD_LETTERS: &str = "cloud_connector_dead_letters_total";
const ROWS_DISCARDED: &str = "cloud_connector_record_rows_discarded_total";
const HANDSHAKE_ERRORS: &str = "cloud_connector_handshake_errors_total";
const RECORD_LATENCY: &str = "cloud_connector_record_latency_seconds";
const IN_FLIGHT_MESSAGES: &str = "cloud_connector_record_in_flight_messages";
const CONSUMER_LAG: &str = "cloud_connector_kafka_consumer_lag_messages";
const BATCH_SIZE: &str = "cloud_connector_record_batch_messages";
const BATCH_DURATION: &str = "cloud_connector_record_batch_duration_seconds";
const BATCHES_RETRYING: &str = "cloud_connector_record_batches_retrying";
const PARTITIONS_FENCED: &str = "cloud_connector_record_partitions_fenced_total";
const TENANT_LOOKUPS: &str = "cloud_connector_tenant_lookups_total";
const TENANT_GATEWAY_REQUESTS: &str = "cloud_connector_tenant_gateway_requests_total";
const TENANT_BREAKER_OPEN: &str = "cloud_connector_tenant_breaker_open";
const QOS0_DROPPED: &str = "cloud_connector_ingest_qos0_dropped_total";
const INVENTORY_MESSAGES: &str = "cloud_connector_inventory_messages_total";
const HOSTS_INELIGIBLE: &str = "cloud_connector_inventory_hosts_ineligible_total";
const SOURCES_REGISTRATIONS: &str = "cloud_connector_sources_registrations_total";
const CONNECTIONS: &str = "cloud_connector_connections";
const TENANTLESS_CONNECTIONS: &str = "cloud_connector_tenantless_connections";
const OLDEST_TENANTLESS_LOOKUP_AGE: &str = "cloud_connector_tenantless_oldest_lookup_age_seconds";
const MASS_LOSS_SUPPRESSED: &str = "cloud_connector_tenant_mass_loss_suppressed_total";
const UPDATER_RUNS: &str = "cloud_connector_updater_runs_total";
const BROKER_CONNECTIONS: &str = "cloud_connector_broker_connections";
const BROKER_REJECTIONS: &str = "cloud_connector_broker_rejections_total";
const CONNECTIONS_ABORTED: &str = "cloud_connector_broker_connections_aborted_total";
const CERTIFICATE_RELOADS: &str = "cloud_connector_tls_certificate_reloads_total";
const MESSAGES_SENT: &str = "cloud_connector_messages_sent_total";
const HTTP_REQUESTS: &str = "cloud_connector_http_requests_total";
const HTTP_REQUEST_DURATION: &str = "cloud_connector_http_request_duration_seconds";

const DURATION_BUCKETS_SECONDS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
const BATCH_SIZE_BUCKETS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];

/// Maximum number of characters of a topic in a log line. Longer topics are truncated, because the
/// sender can choose a topic of any length.
const MAX_LOGGED_TOPIC_CHARS: usize = 300;

static PROMETHEUS_HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();

/// Returns the handle that renders the metrics in the Prometheus text format. The first call starts
/// the collection of metrics. Metric updates before the first call are discarded.
pub fn prometheus_handle() -> &'static PrometheusHandle {
    PROMETHEUS_HANDLE.get_or_init(|| {
        let metrics_recorder = prometheus_builder().build_recorder();
        let handle = metrics_recorder.handle();
        // `set_global_recorder` fails only if a metrics recorder is already installed. The error
        // is ignored, because no other code installs a metrics recorder.
        let _ = ::metrics::set_global_recorder(metrics_recorder);
        describe_all_metrics();
        handle
    })
}

fn prometheus_builder() -> PrometheusBuilder {
    let duration_metrics = Matcher::Suffix("_seconds".to_owned());
    let batch_size_metric = Matcher::Full(BATCH_SIZE.to_owned());
    PrometheusBuilder::new()
        .set_buckets_for_metric(duration_metrics, DURATION_BUCKETS_SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(batch_size_metric, BATCH_SIZE_BUCKETS))
        .expect("the bucket lists are constants and not empty")
}

fn describe_all_metrics() {
    describe_recording_metrics();
    describe_tenant_metrics();
    describe_broker_and_api_metrics();
}

fn describe_recording_metrics() {
    describe_counter!(
        MESSAGES_RECEIVED,
        "Messages received from the MQTT broker, by channel"
    );
    describe_counter!(
        MESSAGES_APPLIED,
        "Presence messages that changed the database, by kind"
    );
    describe_counter!(MESSAGES_IGNORED, "Messages that changed nothing, by reason");
    describe_counter!(
        DEAD_LETTERS,
        "Messages that can never be processed, by reason (see `cloud-connector dead-letters`)"
    );
    describe_counter!(
        ROWS_DISCARDED,
        "Rows rejected by the database that could not be stored as dead letters either"
    );
    describe_counter!(
        HANDSHAKE_ERRORS,
        "Invalid handshakes, by whether an error message was queued for the client"
    );
    describe_histogram!(
        RECORD_LATENCY,
        "Time from receiving a message to committing it to the database"
    );
    describe_gauge!(
        IN_FLIGHT_MESSAGES,
        "Messages accepted by the recorder and not yet committed"
    );
    describe_gauge!(
        CONSUMER_LAG,
        "Messages not yet consumed in the partitions assigned to this process, by topic"
    );
    describe_histogram!(BATCH_SIZE, "Messages per database batch");
    describe_histogram!(
        BATCH_DURATION,
        "Time from the start of a batch to its commit, including retries"
    );
    describe_gauge!(
        BATCHES_RETRYING,
        "Batches being retried because the database write failed"
    );
    describe_counter!(
        PARTITIONS_FENCED,
        "Partitions whose batch was dropped because another process owns them now"
    );
}

fn describe_tenant_metrics() {
    describe_counter!(TENANT_LOOKUPS, "Tenant lookups, by outcome");
    describe_counter!(TENANT_GATEWAY_REQUESTS, "Requests to the tenant gateway");
    describe_gauge!(
        TENANT_BREAKER_OPEN,
        "1 while the circuit breaker of the tenant lookup is open, else 0"
    );
    describe_counter!(
        QOS0_DROPPED,
        "QoS 0 messages dropped because the ingest buffer was full"
    );
    describe_counter!(INVENTORY_MESSAGES, "Host messages to inventory, by outcome");
    describe_counter!(
        HOSTS_INELIGIBLE,
        "Hosts not reported because inventory would reject them, by reason"
    );
    describe_counter!(
        SOURCES_REGISTRATIONS,
        "Registrations of catalog proxies with the sources service, by outcome"
    );
    describe_gauge!(CONNECTIONS, "Connected clients that have a tenant");
    describe_gauge!(
        TENANTLESS_CONNECTIONS,
        "Connected clients without a tenant, by state: pending (lookup is retried) or gave_up"
    );
    describe_gauge!(
        OLDEST_TENANTLESS_LOOKUP_AGE,
        "Longest time since the latest tenant lookup, of all clients in the state pending"
    );
    describe_counter!(
        MASS_LOSS_SUPPRESSED,
        "Times that the lookup returned no tenant for too many clients at once and was not applied"
    );
    describe_counter!(UPDATER_RUNS, "Runs of periodic jobs, by job and outcome");
}

fn describe_broker_and_api_metrics() {
    describe_gauge!(
        BROKER_CONNECTIONS,
        "Clients connected to the embedded broker"
    );
    describe_counter!(
        BROKER_REJECTIONS,
        "MQTT connections, publishes and subscriptions rejected by the embedded broker, by reason"
    );
    describe_counter!(
        CONNECTIONS_ABORTED,
        "MQTT connections closed because a message was not stored within broker.ack_timeout"
    );
    describe_counter!(
        CERTIFICATE_RELOADS,
        "Reloads of TLS server certificates, by listener and outcome"
    );
    describe_counter!(MESSAGES_SENT, "Messages sent to clients, by outcome");
    describe_counter!(HTTP_REQUESTS, "HTTP requests, by route and status");
    describe_histogram!(
        HTTP_REQUEST_DURATION,
        "Time from receiving an HTTP request to its response, by route"
    );
}

/// Counts a message received from the MQTT broker.
pub fn count_received_message(channel: &'static str) {
    counter!(MESSAGES_RECEIVED, "channel" => channel).increment(1);
}

/// Counts presence messages that changed the database. `kind` is `online`, `heartbeat` or
/// `offline`.
pub fn count_applied_messages(kind: &'static str, count: usize) {
    counter!(MESSAGES_APPLIED, "kind" => kind).increment(count as u64);
}

/// Counts a message that did not change the database, and logs the reason at level debug.
pub fn count_ignored_message(client: &ClientId, reason: &'static str) {
    counter!(MESSAGES_IGNORED, "reason" => reason).increment(1);
    tracing::debug!(client_id = %client, reason, "message ignored");
}

/// Records the time from receiving a message to committing the message to the database. Because
/// the clocks of two machines may differ, the time can be negative. A negative time counts as zero.
pub fn observe_record_latency(latency: jiff::SignedDuration) {
    histogram!(RECORD_LATENCY).record(latency.as_secs_f64().max(0.0));
}

/// Sets the number of messages that the recorder has accepted and not yet committed.
pub fn set_in_flight_messages(count: usize) {
    gauge!(IN_FLIGHT_MESSAGES).set(count as f64);
}

/// Sets the consumer lag of a Kafka topic. `topic` is `ingress` or `answers`, not the configured
/// topic name.
pub fn set_consumer_lag(topic: &'static str, message_count: i64) {
    gauge!(CONSUMER_LAG, "topic" => topic).set(message_count as f64);
}

/// Counts an invalid handshake. `is_error_queued` is false if the queue of error messages was full.
/// The client then receives no error message.
pub fn count_invalid_handshake(is_error_queued: bool) {
    let sent = if is_error_queued { "yes" } else { "no" };
    counter!(HANDSHAKE_ERRORS, "sent" => sent).increment(1);
}

/// Counts a row that was discarded: the database rejected the row, and the row could not be stored
/// as a dead letter.
pub fn count_discarded_row(error: &str) {
    counter!(ROWS_DISCARDED).increment(1);
    tracing::error!(
        error,
        "row rejected by the database and not storable as a dead letter; discarded"
    );
}

/// Counts a dead letter and logs it. At most one dead letter per second is logged at level warn,
/// and all others at level debug. Otherwise one client could fill the disk with log lines.
pub fn count_dead_letter(topic: &str, rejection: &Rejection) {
    static LOG_THROTTLE: LogThrottle = LogThrottle::new();
    let (reason, detail) = (rejection.reason.as_str(), &rejection.detail);
    counter!(DEAD_LETTERS, "reason" => reason).increment(1);
    let topic: String = topic.chars().take(MAX_LOGGED_TOPIC_CHARS).collect();
    if LOG_THROTTLE.should_log() {
        tracing::warn!(
            topic,
            reason,
            detail,
            "dead letter (at most one logged per second)"
        );
    } else {
        tracing::debug!(topic, reason, detail, "dead letter");
    }
}

/// Records the number of messages in a committed batch, and the time from the start of the batch to
/// its commit.
pub fn observe_committed_batch(message_count: usize, duration: Duration) {
    histogram!(BATCH_SIZE).record(message_count as f64);
    histogram!(BATCH_DURATION).record(duration);
}

/// Reports that a batch write failed and will be retried. Writes a log line for the attempts 1, 2,
/// 4, 8, and so on.
pub fn report_batch_retry(attempt: u32, message_count: usize, error: &dyn std::error::Error) {
    if attempt == 1 {
        gauge!(BATCHES_RETRYING).increment(1.0);
    }
    if attempt.is_power_of_two() {
        tracing::error!(attempt, message_count, %error, "batch write failed; retrying");
    }
}

/// Reports that a batch is no longer retried, because the batch was written or fenced.
pub fn report_batch_retry_ended() {
    gauge!(BATCHES_RETRYING).decrement(1.0);
}

/// Counts fenced partitions: the batch was dropped, because another process now owns the
/// partitions.
pub fn count_fenced_partitions(partitions: &[i32]) {
    counter!(PARTITIONS_FENCED).increment(partitions.len() as u64);
    tracing::warn!(?partitions, "batch fenced: partitions were reassigned");
}

/// Counts a finished tenant lookup.
pub fn count_tenant_lookup(status: LookupStatus) {
    counter!(TENANT_LOOKUPS, "outcome" => status.as_str()).increment(1);
}

/// Counts a request to the tenant gateway.
pub fn count_tenant_gateway_request() {
    counter!(TENANT_GATEWAY_REQUESTS).increment(1);
}

/// Sets whether the circuit breaker of the tenant lookup is open.
pub fn set_tenant_breaker_open(is_open: bool) {
    gauge!(TENANT_BREAKER_OPEN).set(if is_open { 1.0 } else { 0.0 });
}

/// Counts a QoS 0 message that was dropped because the ingest buffer was full. Logs at most one
/// line per second.
pub fn count_dropped_qos0_message() {
    static LOG_THROTTLE: LogThrottle = LogThrottle::new();
    counter!(QOS0_DROPPED).increment(1);
    if LOG_THROTTLE.should_log() {
        tracing::warn!("QoS 0 messages dropped: buffer full");
    }
}

/// Counts messages to inventory. `delivery_results` has one element per message: true if the
/// message was delivered.
pub fn count_inventory_deliveries(delivery_results: &[bool]) {
    let delivered = delivery_results.iter().filter(|delivered| **delivered);
    let delivered_count = delivered.count();
    let failed_count = delivery_results.len() - delivered_count;
    counter!(INVENTORY_MESSAGES, "outcome" => "delivered").increment(delivered_count as u64);
    counter!(INVENTORY_MESSAGES, "outcome" => "not_delivered").increment(failed_count as u64);
    if failed_count > 0 {
        tracing::warn!(
            hosts = failed_count,
            "inventory delivery failed; will retry in the inventory refresh job"
        );
    }
}

/// Counts a host that was not reported to inventory, because inventory would reject the host.
pub fn count_ineligible_host(client: &ClientId, reason: &'static str) {
    counter!(HOSTS_INELIGIBLE, "reason" => reason).increment(1);
    tracing::debug!(client_id = %client, reason, "host not reported: inventory would reject it");
}

/// Counts an attempt to register a catalog proxy with the sources service.
pub fn count_source_registration(outcome: &'static str) {
    counter!(SOURCES_REGISTRATIONS, "outcome" => outcome).increment(1);
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

/// Counts a suppressed mass loss: the lookup returned no tenant for too many clients at once, and
/// the clients kept their previous tenants.
pub fn count_suppressed_mass_loss() {
    counter!(MASS_LOSS_SUPPRESSED).increment(1);
}

/// Counts a finished run of a periodic job.
pub fn count_job_run(job_name: &'static str, has_failed: bool) {
    let outcome = if has_failed { "failed" } else { "succeeded" };
    counter!(UPDATER_RUNS, "updater" => job_name, "outcome" => outcome).increment(1);
}

/// Sets the number of clients connected to the embedded broker.
pub fn set_broker_connections(count: usize) {
    gauge!(BROKER_CONNECTIONS).set(count as f64);
}

/// Counts a rejected MQTT connection, publish or subscription. `peer` is the client id. Before the
/// client is authenticated, `peer` is the socket address.
///
/// The log line has level debug. Otherwise many clients that reconnect at once could fill the disk
/// with log lines.
pub fn count_broker_rejection(reason: &'static str, peer: &dyn std::fmt::Display) {
    counter!(BROKER_REJECTIONS, "reason" => reason).increment(1);
    tracing::debug!(reason, %peer, "rejected by the broker");
}

/// Counts an aborted MQTT connection: the broker closed the connection, because a message was not
/// stored in time.
pub fn count_aborted_connection(client: &ClientId) {
    counter!(CONNECTIONS_ABORTED).increment(1);
    tracing::debug!(
        client_id = %client,
        "connection closed: message not stored within broker.ack_timeout"
    );
}

/// Counts a reload of TLS certificates. After a failed reload, the previous certificates stay in
/// use.
pub fn count_certificate_reload(
    listener: &'static str,
    result: Result<(), &dyn std::error::Error>,
) {
    let outcome = if result.is_ok() { "reloaded" } else { "failed" };
    counter!(CERTIFICATE_RELOADS, "listener" => listener, "outcome" => outcome).increment(1);
    match result {
        Ok(()) => tracing::info!(listener, "TLS certificates reloaded"),
        Err(error) => tracing::error!(
            listener,
            %error,
            "failed to reload TLS certificates; the previous ones stay in use"
        ),
    }
}

/// Counts a message to a client, by the outcome of sending the message.
pub fn count_message_to_client(outcome: &'static str) {
    counter!(MESSAGES_SENT, "outcome" => outcome).increment(1);
}

/// Records the status and the duration of an HTTP request. `route` is the route pattern, not the
/// path, because the number of different paths is unbounded.
pub fn observe_http_request(route: &str, status: u16, duration: Duration) {
    counter!(HTTP_REQUESTS, "route" => route.to_owned(), "status" => status.to_string())
        .increment(1);
    histogram!(HTTP_REQUEST_DURATION, "route" => route.to_owned()).record(duration);
}
