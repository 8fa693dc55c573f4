//! The audit log. It contains one line for each request to a v1 management endpoint, and for each
//! v2 request to ping, check, reconnect or disconnect a client.

use super::error::ApiError;
use crate::telemetry::request_id;

/// Log target of audit lines. Audit lines are written at every `log.level`, unless `log.level`
/// contains a directive for this target.
const AUDIT_LOG_TARGET: &str = "cloud_connector::audit";

/// An action that is recorded in the audit log. Contains the fields of the audit line that do not
/// depend on the result of the action.
pub(super) struct AuditedAction<'a> {
    /// Name of the key, email address of the associate, or type of the identity.
    pub caller: &'a str,
    pub action: &'static str,
    /// Account number in v1, organization id in v2. Empty if the action is not for one tenant.
    pub tenant: &'a str,
    /// Id of the client that the action is for. Empty if the action is not for one client.
    pub client_id: &'a str,
}

/// Runs `work`, writes the audit line of the action, and returns the result of `work`.
///
/// If the caller closes the connection or the request times out, `work` is dropped before it
/// completes. The audit line is also written in this case.
pub(super) async fn run_audited<T>(
    action: &AuditedAction<'_>,
    work: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    let log_if_dropped = LogAbortedAction(action);
    let result = work.await;
    std::mem::forget(log_if_dropped);
    match &result {
        Ok(_) => action.log(200, "ok"),
        Err(error) => {
            let (status, title) = error.status_and_title();
            action.log(status, title);
        }
    }
    result
}

/// Guard that writes the audit line of an aborted action. The line is written when the guard is
/// dropped.
struct LogAbortedAction<'a>(&'a AuditedAction<'a>);

impl Drop for LogAbortedAction<'_> {
    fn drop(&mut self) {
        self.0.log(0, "request aborted before completion");
    }
}

impl AuditedAction<'_> {
    fn log(&self, status: u16, result: &str) {
        tracing::info!(
            target: AUDIT_LOG_TARGET,
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
