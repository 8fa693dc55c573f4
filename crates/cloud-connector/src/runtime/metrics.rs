//! Registers the help texts of the metrics of all components.

use super::event_sequencer;
use network::tls_server;
use pipeline::{ingest, record};

/// Registers the help texts of all metrics. Call this function after
/// [`prometheus_handle`](service::metrics::prometheus_handle), because earlier
/// registrations are discarded.
pub fn describe_all() {
    api::metrics::describe();
    broker::metrics::describe();
    delivery::metrics::describe();
    event_sequencer::describe_metrics();
    ingest::metrics::describe();
    integrations::metrics::describe();
    jobs::metrics::describe();
    kafka::metrics::describe();
    record::metrics::describe();
    service::metrics::describe();
    store::metrics::describe();
    tenant::metrics::describe();
    tls_server::metrics::describe();
}
