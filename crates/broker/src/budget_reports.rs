//! Counts and logs the messages of clients that are over their budget.

use std::time::Duration;

use super::metrics;
use domain::ClientId;
use service::LogLimiter;

/// Minimum time between two log lines for one client.
const LOG_INTERVAL: Duration = Duration::from_mins(1);
/// Maximum number of clients with a log line within [`LOG_INTERVAL`].
const MAX_LOGGED_CLIENTS: usize = 100;

pub(super) struct BudgetReports {
    log: LogLimiter<ClientId>,
}

impl BudgetReports {
    pub fn new() -> Self {
        Self {
            log: LogLimiter::new(LOG_INTERVAL, MAX_LOGGED_CLIENTS),
        }
    }

    /// Reports a message that waits until its client is within its budget.
    pub fn report_delayed(&self, client: &ClientId) {
        self.report(client, "delayed");
    }

    /// Reports a dropped QoS 0 message.
    pub fn report_dropped(&self, client: &ClientId) {
        self.report(client, "dropped");
    }

    fn report(&self, client: &ClientId, action: &'static str) {
        metrics::count_budget_exceeded(action);
        if let Some(suppressed_lines) = self.log.suppressed_if_due(client) {
            tracing::info!(
                client_id = client.as_str(),
                action,
                suppressed_lines,
                "client exceeds its budget (client_budget); its messages are delayed or dropped"
            );
        }
    }
}
