//! Every metric of the process, in one place: its name, its help and the function that counts it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::domain::ClientId;
use crate::protocol::Rejection;

const RECEIVED: &str = "cloud_connector_messages_received_total";
const RECORDED: &str = "cloud_connector_messages_applied_total";
const NO_EFFECT: &str = "cloud_connector_messages_ignored_total";
const DEAD_LETTERS: &str = "cloud_connector_dead_letters_total";
const ROWS_GIVEN_UP: &str = "cloud_connector_record_rows_discarded_total";
const REFUSALS: &str = "cloud_connector_handshake_errors_total";
const WAITED: &str = "cloud_connector_record_latency_seconds";
const IN_FLIGHT: &str = "cloud_connector_record_in_flight_messages";
const LAG: &str = "cloud_connector_kafka_consumer_lag_messages";
const BATCH_SIZE: &str = "cloud_connector_record_batch_messages";
const BATCH_TIME: &str = "cloud_connector_record_batch_duration_seconds";
const HELD: &str = "cloud_connector_record_batches_retrying";
const FENCED: &str = "cloud_connector_record_partitions_fenced_total";
const TENANT: &str = "cloud_connector_tenant_lookups_total";
const LOOKUPS_ASKED: &str = "cloud_connector_tenant_gateway_requests_total";
const BREAKER: &str = "cloud_connector_tenant_breaker_open";
const OVERFLOWED: &str = "cloud_connector_ingest_qos0_dropped_total";
const ANNOUNCED: &str = "cloud_connector_inventory_messages_total";
const NOT_ANNOUNCED: &str = "cloud_connector_inventory_hosts_ineligible_total";
const SOURCES: &str = "cloud_connector_sources_registrations_total";
const CONNECTIONS: &str = "cloud_connector_connections";
const TENANTLESS: &str = "cloud_connector_tenantless_connections";
const TENANTLESS_AGE: &str = "cloud_connector_tenantless_oldest_lookup_age_seconds";
const MASS_LOSS: &str = "cloud_connector_tenant_mass_loss_suppressed_total";
const UPDATER_RUNS: &str = "cloud_connector_updater_runs_total";
const LINKS: &str = "cloud_connector_broker_connections";
const REFUSED: &str = "cloud_connector_broker_rejections_total";
const SEVERED: &str = "cloud_connector_broker_connections_aborted_total";
const CERTIFICATES: &str = "cloud_connector_tls_certificate_reloads_total";
const SENT: &str = "cloud_connector_messages_sent_total";
const REQUESTS: &str = "cloud_connector_http_requests_total";
const REQUEST_TIME: &str = "cloud_connector_http_request_duration_seconds";

const SECONDS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
const COUNTS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];

/// Says yes about once a second.
pub struct LogThrottle(AtomicU64);

impl LogThrottle {
    /// One that has not said anything yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether it is time again.
    pub fn now(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_secs());
        self.0.swap(now, Ordering::Relaxed) != now
    }
}

impl Default for LogThrottle {
    fn default() -> Self {
        Self::new()
    }
}

static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();

/// What renders the metrics. The first call starts collecting, for the whole process: that is how
/// the `metrics` crate works.
pub fn handle() -> &'static PrometheusHandle {
    HANDLE.get_or_init(|| {
        let recorder = builder().build_recorder();
        let handle = recorder.handle();
        // Fails only if another recorder was set, and this is the only place that sets one.
        let _ = ::metrics::set_global_recorder(recorder);
        describe();
        handle
    })
}

fn builder() -> PrometheusBuilder {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)
        .and_then(|b| b.set_buckets_for_metric(Matcher::Full(BATCH_SIZE.to_owned()), COUNTS))
        .expect("the buckets are constants, and not empty")
}

fn describe() {
    describe_counter!(RECEIVED, "Messages taken from the broker, by channel");
    describe_counter!(RECORDED, "Messages that took effect, by what they said");
    describe_counter!(NO_EFFECT, "Messages without effect, by reason");
    describe_counter!(
        DEAD_LETTERS,
        "Messages that can never be processed, by reason; `cloud-connector dead-letters` shows them"
    );
    describe_counter!(
        ROWS_GIVEN_UP,
        "Rows that the database refused and that could not be kept as dead letters either"
    );
    describe_counter!(
        REFUSALS,
        "Handshakes that were refused, by whether the client is told"
    );
    describe_histogram!(
        WAITED,
        "Time from the broker's receipt of a message to its commit"
    );
    describe_gauge!(IN_FLIGHT, "Messages taken in and not committed yet");
    describe_gauge!(
        LAG,
        "Messages that wait in partitions of this process, by queue"
    );
    describe_histogram!(BATCH_SIZE, "Messages in a batch");
    describe_histogram!(BATCH_TIME, "Time from a batch's start to its commit");
    describe_gauge!(HELD, "Batches that wait for the database to come back");
    describe_counter!(
        FENCED,
        "Partitions whose batch was dropped because another process owned them by then"
    );
    describe_counter!(TENANT, "Tenant lookups, by outcome");
    describe_counter!(LOOKUPS_ASKED, "Requests to the tenant lookup service");
    describe_gauge!(
        BREAKER,
        "1 while the tenant lookup service does not answer and is not asked but for probes"
    );
    describe_counter!(
        OVERFLOWED,
        "Messages with QoS 0 dropped because too much of them waited"
    );
    describe_counter!(ANNOUNCED, "Hosts announced to inventory, by outcome");
    describe_counter!(
        NOT_ANNOUNCED,
        "Hosts that inventory would refuse and that it was not told of, by reason"
    );
    describe_counter!(
        SOURCES,
        "Registrations of catalog proxies with the sources service, by outcome"
    );
    describe_gauge!(CONNECTIONS, "Connections that belong to an organisation");
    describe_gauge!(
        TENANTLESS,
        "Connections that belong to nobody, by whether they are looked up again"
    );
    describe_gauge!(
        TENANTLESS_AGE,
        "Time since the connection that waits longest for an organisation was last looked up"
    );
    describe_counter!(
        MASS_LOSS,
        "Times that too many clients would have lost their organisation at once, and did not"
    );
    describe_counter!(UPDATER_RUNS, "Runs of the updaters, by outcome");
    describe_gauge!(
        LINKS,
        "Clients that hold a connection to the embedded broker"
    );
    describe_counter!(REFUSED, "MQTT connections and publishes refused, by reason");
    describe_counter!(
        SEVERED,
        "MQTT connections closed because a message could not be stored in time"
    );
    describe_counter!(
        CERTIFICATES,
        "Times that certificates were read again, by outcome"
    );
    describe_counter!(SENT, "Messages from callers to clients, by outcome");
    describe_counter!(REQUESTS, "HTTP requests, by route and status");
    describe_histogram!(REQUEST_TIME, "Time to answer an HTTP request, by route");
}

/// A message was taken from the broker.
pub fn received(channel: &'static str) {
    counter!(RECEIVED, "channel" => channel).increment(1);
}

/// Messages took effect.
pub fn recorded(what: &'static str, count: usize) {
    counter!(RECORDED, "what" => what).increment(count as u64);
}

/// A message had no effect.
pub fn without_effect(client: &ClientId, reason: &'static str) {
    counter!(NO_EFFECT, "reason" => reason).increment(1);
    tracing::debug!(client_id = %client, reason, "message has no effect");
}

/// A message was committed, so long after the broker had it. Clocks of machines differ.
pub fn waited(since: jiff::SignedDuration) {
    histogram!(WAITED).record(since.as_secs_f64().max(0.0));
}

/// How many messages are taken in and not committed.
pub fn in_flight(count: usize) {
    gauge!(IN_FLIGHT).set(count as f64);
}

/// How many messages wait in the queue.
pub fn lag(queue: &'static str, messages: i64) {
    gauge!(LAG, "queue" => queue).set(messages as f64);
}

/// A handshake was refused; told means that the client hears of it.
pub fn handshake_refused(told: bool) {
    counter!(REFUSALS, "told" => if told { "yes" } else { "no" }).increment(1);
}

/// The database refused a row, and its dead letter, too.
pub fn row_given_up(why: &str) {
    counter!(ROWS_GIVEN_UP).increment(1);
    tracing::error!(
        why,
        "the database refuses a row that cannot be kept apart; given up"
    );
}

/// A message can never be processed. The topic is cut: it is the sender's text.
pub fn dead_letter(topic: &str, rejected: &Rejection) {
    static SAID: LogThrottle = LogThrottle::new();
    counter!(DEAD_LETTERS, "reason" => rejected.reason).increment(1);
    let topic: String = topic.chars().take(300).collect();
    let (reason, detail) = (rejected.reason, &rejected.detail);
    // A line for each would let one client fill the disk.
    if SAID.now() {
        tracing::warn!(
            topic,
            reason,
            detail,
            "dead letter (others are only counted)"
        );
    } else {
        tracing::debug!(topic, reason, detail, "dead letter");
    }
}

/// A batch was committed.
pub fn batch(messages: usize, took: Duration) {
    histogram!(BATCH_SIZE).record(messages as f64);
    histogram!(BATCH_TIME).record(took);
}

/// A batch could not be written and is held. Logged at its first failure and then ever more rarely.
pub fn batch_held(attempt: u32, messages: usize, error: &dyn std::error::Error) {
    if attempt == 1 {
        gauge!(HELD).increment(1.0);
    }
    if attempt.is_power_of_two() {
        tracing::error!(attempt, messages, %error, "batch held: the database does not take it");
    }
}

/// A held batch was written, or given up at shutdown.
pub fn batch_released() {
    gauge!(HELD).decrement(1.0);
}

/// Partitions whose batch was dropped, because another owns them by now.
pub fn fenced(partitions: &[i32]) {
    counter!(FENCED).increment(partitions.len() as u64);
    tracing::warn!(
        ?partitions,
        "batch dropped: another process owns the partitions by now"
    );
}

/// A tenant lookup ended.
pub fn tenant_lookup(outcome: &'static str) {
    counter!(TENANT, "outcome" => outcome).increment(1);
}

/// The lookup service was asked.
pub fn lookup_asked() {
    counter!(LOOKUPS_ASKED).increment(1);
}

/// The lookup service is not asked any more, or again.
pub fn lookup_breaker(open: bool) {
    gauge!(BREAKER).set(if open { 1.0 } else { 0.0 });
}

/// A message that the broker does not keep for us was dropped.
pub fn overflowed() {
    static SAID: LogThrottle = LogThrottle::new();
    counter!(OVERFLOWED).increment(1);
    if SAID.now() {
        tracing::warn!("signs of life and other messages with QoS 0 are dropped: too many wait");
    }
}

/// Hosts were announced to inventory, each delivered or not.
pub fn announced(delivered: &[bool]) {
    let heard = delivered.iter().filter(|heard| **heard).count();
    let missed = delivered.len() - heard;
    counter!(ANNOUNCED, "outcome" => "delivered").increment(heard as u64);
    counter!(ANNOUNCED, "outcome" => "not_delivered").increment(missed as u64);
    if missed > 0 {
        tracing::warn!(
            missed,
            "inventory was not told of hosts; the stale updater tells it later"
        );
    }
}

/// Inventory would refuse a host.
pub fn not_announced(client: &ClientId, reason: &'static str) {
    counter!(NOT_ANNOUNCED, "reason" => reason).increment(1);
    tracing::debug!(client_id = %client, reason, "inventory would refuse this host");
}

/// A catalog proxy was registered with the sources service, or not.
pub fn source_registered(outcome: &'static str) {
    counter!(SOURCES, "outcome" => outcome).increment(1);
}

/// How many are connected, and how those without an organisation stand.
pub fn connections(
    with_tenant: u64,
    waiting: u64,
    exhausted: u64,
    oldest: Option<jiff::SignedDuration>,
) {
    gauge!(CONNECTIONS).set(with_tenant as f64);
    gauge!(TENANTLESS, "state" => "waiting").set(waiting as f64);
    gauge!(TENANTLESS, "state" => "exhausted").set(exhausted as f64);
    let age = oldest.map_or(0.0, |age| age.as_secs_f64().max(0.0));
    gauge!(TENANTLESS_AGE).set(age);
}

/// Too many would have lost their organisation at once.
pub fn mass_loss() {
    counter!(MASS_LOSS).increment(1);
}

/// An updater has run.
pub fn updater_run(updater: &'static str, failed: bool) {
    let outcome = if failed { "failed" } else { "done" };
    counter!(UPDATER_RUNS, "updater" => updater, "outcome" => outcome).increment(1);
}

/// The number of clients that hold an MQTT connection.
pub fn links(count: usize) {
    gauge!(LINKS).set(count as f64);
}

/// A connection or a publish was refused. One line each would let a storm fill the disk.
pub fn refused(reason: &'static str, who: &dyn std::fmt::Display) {
    counter!(REFUSED, "reason" => reason).increment(1);
    tracing::debug!(reason, %who, "refused");
}

/// A connection was closed because its message could not be stored in time.
pub fn severed(client: &ClientId) {
    counter!(SEVERED).increment(1);
    tracing::debug!(client_id = %client, "connection closed: its message could not be stored in time");
}

/// A server's certificates were read again, or could not be and the old ones stay.
pub fn certificates_read(section: &'static str, outcome: Result<(), &dyn std::error::Error>) {
    match outcome {
        Ok(()) => {
            counter!(CERTIFICATES, "outcome" => "read").increment(1);
            tracing::info!(section, "the certificates were read again");
        }
        Err(error) => {
            counter!(CERTIFICATES, "outcome" => "kept_old").increment(1);
            tracing::error!(section, %error, "keeping the old certificates");
        }
    }
}

/// A message to a client was handed to the broker, or not.
pub fn sent(outcome: &'static str) {
    counter!(SENT, "outcome" => outcome).increment(1);
}

/// A request was answered. `route` is the route's pattern, never the path.
pub fn request(route: &str, status: u16, took: Duration) {
    counter!(REQUESTS, "route" => route.to_owned(), "status" => status.to_string()).increment(1);
    histogram!(REQUEST_TIME, "route" => route.to_owned()).record(took);
}
