//! What was done to connections: who, what, to which, with which result.

use super::error::ApiError;
use crate::telemetry::request_id;

/// Lines of this target are the audit; they are written whatever `log.level` says.
const AUDIT: &str = "cloud_connector::audit";

/// What is done to which connection, by whom.
pub(super) struct Action<'a> {
    /// A key's name, or a member of staff.
    pub who: &'a str,
    pub name: &'static str,
    /// An account number, or in the second generation an organisation.
    pub tenant: &'a str,
    pub client: &'a str,
}

/// Does it, writes the line, and gives the outcome back. What is given up half-way, because the caller
/// went away or it took too long, leaves its line, too.
pub(super) async fn audited<T>(
    action: &Action<'_>,
    work: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    let unfinished = AbandonedAction(action);
    let outcome = work.await;
    std::mem::forget(unfinished);
    match &outcome {
        Ok(_) => action.log(200, "done"),
        Err(error) => {
            let (status, result) = error.outcome();
            action.log(status, result);
        }
    }
    outcome
}

struct AbandonedAction<'a>(&'a Action<'a>);

impl Drop for AbandonedAction<'_> {
    fn drop(&mut self) {
        self.0.log(0, "given up before its end");
    }
}

impl Action<'_> {
    fn log(&self, status: u16, result: &str) {
        tracing::info!(
            target: AUDIT,
            request_id = request_id::current(),
            who = self.who,
            action = self.name,
            tenant = self.tenant,
            client_id = self.client,
            status,
            result,
            "management"
        );
    }
}
