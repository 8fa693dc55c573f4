//! The audit log. It contains one line for each request to a management endpoint, and for each v2
//! request to ping, check, reconnect or disconnect a client. The audit log does not contain
//! requests that were rejected because of invalid credentials, invalid input or a rate limit.

use super::error::ApiError;
use service::{log_text, request_id};

/// Log target of audit lines. Audit lines are written even if `log.level` is `warn` or `error`.
/// Only a directive for this target in `log.level` can disable audit lines.
const AUDIT_LOG_TARGET: &str = "cloud_connector::audit";

/// Maximum number of characters of a text that the caller chose. Valid client ids are shorter.
const MAX_LOGGED_CHARS: usize = 256;

/// An action that is recorded in the audit log. Contains the fields of the audit line that do not
/// depend on the result of the action.
pub(super) struct AuditedAction<'a> {
    /// The caller that performs the action: the name of a key, the email address of an associate,
    /// or the type of an identity.
    pub caller: &'a str,
    pub action: &'static str,
    /// The tenant: an account number in v1, an organization id in v2. Empty if the action is not
    /// for one tenant.
    pub tenant: &'a str,
    /// Id of the client that the action is for. For a search, the searched text. Empty if the action is not for one client.
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
    let aborted_action_logger = AbortedActionLogger(action);
    let result = work.await;
    std::mem::forget(aborted_action_logger);
    match &result {
        Ok(_) => action.log(200, "ok"),
        Err(error) => {
            let (status, title) = error.status_and_title();
            action.log(status, title);
        }
    }
    result
}

/// Writes the audit line of an aborted action when this value is dropped. If the action completes,
/// [`run_audited`] calls `forget` instead of dropping the value.
struct AbortedActionLogger<'a>(&'a AuditedAction<'a>);

impl Drop for AbortedActionLogger<'_> {
    fn drop(&mut self) {
        self.0.log(0, "request aborted before completion");
    }
}

impl AuditedAction<'_> {
    fn log(&self, status: u16, result: &str) {
        tracing::info!(
            target: AUDIT_LOG_TARGET,
            request_id = request_id::current(),
            caller = log_text(self.caller, MAX_LOGGED_CHARS),
            action = self.action,
            tenant = log_text(self.tenant, MAX_LOGGED_CHARS),
            client_id = log_text(self.client_id, MAX_LOGGED_CHARS),
            status,
            result,
            "management action"
        );
    }
}
