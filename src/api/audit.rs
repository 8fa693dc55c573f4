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

/// Writes the line, and gives the outcome back.
pub(super) fn audited<T>(action: &Action<'_>, outcome: Result<T, ApiError>) -> Result<T, ApiError> {
    let (status, result) = match &outcome {
        Ok(_) => (200, "done"),
        Err(error) => error.outcome(),
    };
    tracing::info!(
        target: AUDIT,
        request_id = request_id::current(),
        who = action.who,
        action = action.name,
        tenant = action.tenant,
        client_id = action.client,
        status,
        result,
        "management"
    );
    outcome
}
