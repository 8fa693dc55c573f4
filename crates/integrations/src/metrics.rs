//! Metrics of the reports to the inventory service and the sources service. Some functions also
//! write a log line.

use metrics::{counter, describe_counter, describe_gauge, gauge};

use domain::ClientId;

const INVENTORY_MESSAGES: &str = "cloud_connector_inventory_messages_total";
const INVENTORY_REPORTS_SKIPPED: &str = "cloud_connector_inventory_reports_skipped_total";
const INVENTORY_BREAKER_OPEN: &str = "cloud_connector_inventory_breaker_open";
const HOSTS_INELIGIBLE: &str = "cloud_connector_inventory_hosts_ineligible_total";
const SOURCES_REGISTRATIONS: &str = "cloud_connector_sources_registrations_total";

/// Registers the help texts of these metrics. Call this function after the metrics recorder is
/// installed, because earlier registrations are discarded.
pub fn describe() {
    describe_counter!(INVENTORY_MESSAGES, "Host messages to inventory, by outcome");
    describe_counter!(
        INVENTORY_REPORTS_SKIPPED,
        "Reports that the recorder did not send, by reason. The inventory refresh job sends them"
    );
    describe_gauge!(
        INVENTORY_BREAKER_OPEN,
        "1 while the circuit breaker of the recorder's reports to inventory is open, else 0"
    );
    describe_counter!(
        HOSTS_INELIGIBLE,
        "Hosts not reported because inventory would reject them, by reason"
    );
    describe_counter!(
        SOURCES_REGISTRATIONS,
        "Registrations of catalog proxies with the sources service, by outcome"
    );
    for reason in SkipReason::ALL {
        count_skipped_reports(reason, 0);
    }
    set_inventory_breaker_open(false);
}

/// Why the recorder did not send a report to inventory. The report stays pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipReason {
    /// Too many reports, or too large reports, are queued.
    QueueFull,
    /// The circuit breaker is open.
    BreakerOpen,
    /// The process is shutting down.
    Shutdown,
}

impl SkipReason {
    const ALL: [Self; 3] = [Self::QueueFull, Self::BreakerOpen, Self::Shutdown];

    fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::BreakerOpen => "breaker_open",
            Self::Shutdown => "shutdown",
        }
    }
}

/// Counts reports to inventory that were not sent.
pub fn count_skipped_reports(reason: SkipReason, count: usize) {
    counter!(INVENTORY_REPORTS_SKIPPED, "reason" => reason.as_str()).increment(count as u64);
}

/// Sets whether the circuit breaker of the recorder's reports to inventory is open.
pub fn set_inventory_breaker_open(is_open: bool) {
    gauge!(INVENTORY_BREAKER_OPEN).set(if is_open { 1.0 } else { 0.0 });
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
