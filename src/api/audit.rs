//! The audit log: one line for each request to a v1 management endpoint, and for each v2 request to
//! ping, check, reconnect or disconnect a client.

use super::error::ApiError;
use crate::telemetry::request_id;

/// Log target of audit lines. They are written at every `log.level`.
const AUDIT_TARGET: &str = "cloud_connector::audit";

/// Fields of an audit line that are known before the action runs.
pub(super) struct AuditedAction<'a> {
    /// Name of the caller's key, or the email address of an associate.
    pub caller: &'a str,
    pub action: &'static str,
    /// Account number in v1, organization id in v2.
    pub tenant: &'a str,
    pub client_id: &'a str,
}

/// Runs `work`, writes its audit line and returns its result.
///
/// The line is also written if `work` is dropped before it completes. This happens when the caller
/// closes the connection or the request times out.
pub(super) async fn run_audited<T>(
    action: &AuditedAction<'_>,
    work: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    let log_on_drop = AbandonedAction(action);
    let outcome = work.await;
    std::mem::forget(log_on_drop);
    match &outcome {
        Ok(_) => action.log(200, "ok"),
        Err(error) => {
            let (status, title) = error.status_and_title();
            action.log(status, title);
        }
    }
    outcome
}

/// Writes the audit line of an action whose future was dropped.
struct AbandonedAction<'a>(&'a AuditedAction<'a>);

impl Drop for AbandonedAction<'_> {
    fn drop(&mut self) {
        self.0.log(0, "request aborted before completion");
    }
}

impl AuditedAction<'_> {
    fn log(&self, status: u16, result: &str) {
        tracing::info!(
            target: AUDIT_TARGET,
            request_id = request_id::current(),
            caller = self.caller,
            action = self.action,
            tenant = self.tenant,
            client_id = self.client_id,
            status,
            result,
            "management action"
        );
    }
}
