//! What was done through the management endpoints: who, what, to which connection, with which result.

use super::auth::Manager;
use super::error::ApiError;

/// Lines of this target are the audit; they are written whatever `log.level` says.
const AUDIT: &str = "cloud_connector::audit";

/// What is done to which connection.
pub(super) struct Action<'a> {
    pub name: &'static str,
    pub account: &'a str,
    pub client: &'a str,
}

/// Writes the line, and gives the outcome back.
pub(super) fn audited<T>(
    manager: &Manager,
    action: &Action<'_>,
    outcome: Result<T, ApiError>,
) -> Result<T, ApiError> {
    let (status, result) = match &outcome {
        Ok(_) => (200, "done"),
        Err(error) => error.outcome(),
    };
    tracing::info!(
        target: AUDIT,
        who = manager.name,
        action = action.name,
        account = action.account,
        client_id = action.client,
        status,
        result,
        "management"
    );
    outcome
}
