//! The Prometheus recorder, which collects and renders the metrics of the process, and the metrics of
//! the supervisor and the logs. Each other component defines its own metrics.

use std::sync::OnceLock;

use metrics::{counter, describe_counter};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

const DURATION_BUCKETS_SECONDS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
const BATCH_SIZE_BUCKETS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];

const TASK_FAILURES: &str = "cloud_connector_task_failures_total";
const DROPPED_LOG_LINES: &str = "cloud_connector_log_lines_dropped_total";

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
        handle
    })
}

fn prometheus_builder() -> PrometheusBuilder {
    let duration_metrics = Matcher::Suffix("_seconds".to_owned());
    let batch_size_metrics = Matcher::Suffix("_batch_messages".to_owned());
    PrometheusBuilder::new()
        .set_buckets_for_metric(duration_metrics, DURATION_BUCKETS_SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(batch_size_metrics, BATCH_SIZE_BUCKETS))
        .expect("the bucket lists are constants and not empty")
}

/// Registers the help texts of the supervisor's and the logs' metrics. Call this function after
/// [`prometheus_handle`], because earlier registrations are discarded.
pub fn describe() {
    describe_counter!(
        TASK_FAILURES,
        "Tasks that panicked, and essential tasks that ended before shutdown, by task name"
    );
    describe_counter!(
        DROPPED_LOG_LINES,
        "Log lines that were dropped, because the reader of standard error did not read or has exited"
    );
    count_dropped_log_lines(0);
}

/// Creates the counter of the task's failures with the value 0. Otherwise a query for an increase
/// would not detect the first failure.
pub(crate) fn register_task(task: &str) {
    counter!(TASK_FAILURES, "task" => task.to_owned()).increment(0);
}

/// Counts a failure of the task.
pub(crate) fn count_task_failure(task: &str) {
    counter!(TASK_FAILURES, "task" => task.to_owned()).increment(1);
}

/// Counts log lines that were dropped.
pub(crate) fn count_dropped_log_lines(count: u64) {
    counter!(DROPPED_LOG_LINES).increment(count);
}
