//! `GET /v2/connections/{client_id}/history`: returns a page of the presence history of a client.

use axum::extract::rejection::PathRejection;
use axum::extract::{OriginalUri, State};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::{
    ClientIdParam, ClientIdPath, INVALID_REQUEST_TITLE, client_id_from_path, invalid_request_error,
    reject_unknown_params,
};
use crate::SharedState;
use crate::auth::OrgCaller;
use crate::error::ApiError;
use crate::json::Json;
use crate::pagination::{Paginated, last_param_value, number_param, query_params};
use domain::ClientId;
use store::HistoryEntry;

const DEFAULT_LIMIT: u64 = 100;
/// Maximum number of entries per page.
const MAX_LIMIT: u32 = 1000;

/// OpenAPI description of the query parameters.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only documents the parameters")]
struct HistoryParams {
    /// Selects the page. For the first page, use no cursor or an empty cursor. For the next page, use
    /// the value of `meta.cursor` in the previous response.
    #[param(pattern = "^[0-9]*$")]
    cursor: Option<String>,
    /// Maximum number of entries to return. Values above 1,000 are reduced to 1,000.
    #[param(required = false, default = 100, format = "uint64")]
    limit: u64,
}

/// A transition of a client between connected and disconnected.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Transition {
    /// Number of the transition. A gap in the numbers is the number of transitions without an entry:
    /// several transitions within a short time are merged.
    number: u64,
    #[schema(format = DateTime)]
    at: String,
    /// `online` or `offline`.
    status: String,
    /// Cause of an online transition: `connected`, `tenant-found`, `heartbeat`, or `takeover` (another
    /// connection with the same client id replaced the connection, which causes no event). Reason of an
    /// offline transition: `client`, `will`, `disconnected`, `expired`, `broker-restart`, `tenant-lost` or
    /// `moved`.
    reason: String,
}

impl From<HistoryEntry> for Transition {
    fn from(entry: HistoryEntry) -> Self {
        Self {
            number: entry.number,
            at: entry.at.to_string(),
            status: entry.status,
            reason: entry.reason,
        }
    }
}

/// List the presence history of a client
///
/// Returns the transitions of the client between connected and disconnected that the organization has
/// seen, newest first.
#[utoipa::path(
    get,
    path = "/connections/{client_id}/history",
    operation_id = "v2.connection.history",
    params(ClientIdParam, HistoryParams),
    responses(
        (status = 200, description = "A page of transitions.", body = Paginated<Transition>),
        (
            status = 404,
            description = "The organization has neither this client nor history of it.",
            body = ApiError
        ),
    ),
)]
pub(super) async fn history(
    State(state): State<SharedState>,
    caller: OrgCaller,
    path: Result<ClientIdPath, PathRejection>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<Paginated<Transition>>, ApiError> {
    let params = query_params(&uri);
    reject_unknown_params(&params, &["cursor", "limit"])?;
    let limit = number_param(&params, "limit", DEFAULT_LIMIT, INVALID_REQUEST_TITLE)?;
    let limit = u32::try_from(limit).unwrap_or(MAX_LIMIT).min(MAX_LIMIT);
    let before_number = parse_cursor(last_param_value(&params, "cursor"))?;
    let client_id = client_id_from_path(path);
    let client_id = ClientId::new(&client_id).map_err(|_| ApiError::no_client())?;

    let org = &caller.org_id;
    // If the additional entry exists, there is a next page.
    let entries = state
        .clients
        .list_history(Some(org), &client_id, before_number, limit + 1);
    let mut entries = entries.await?;
    if entries.is_empty() {
        let client = state.clients.find_client_for_org(org, &client_id).await?;
        let newest = state.clients.list_history(Some(org), &client_id, None, 1);
        if client.is_none() && newest.await?.is_empty() {
            return Err(ApiError::no_client());
        }
    }
    let next_cursor = next_cursor(&mut entries, limit);
    let data = entries.into_iter().map(Transition::from).collect();
    let page = Paginated::cursor_page(&uri, limit.into(), next_cursor, data);
    Ok(Json(page))
}

/// Removes the entries after the page. Returns the cursor of the next page.
fn next_cursor(entries: &mut Vec<HistoryEntry>, limit: u32) -> Option<String> {
    let limit = limit as usize;
    let has_next = entries.len() > limit;
    entries.truncate(limit);
    let last_entry = entries.last().filter(|_| has_next);
    last_entry.map(|entry| entry.number.to_string())
}

/// Parses a cursor: the number of the last entry on the previous page.
fn parse_cursor(cursor: Option<&str>) -> Result<Option<u64>, ApiError> {
    match cursor {
        None | Some("") => Ok(None),
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            // No entry has a larger number, so the page is the first page.
            Ok(Some(digits.parse().unwrap_or(u64::MAX)))
        }
        Some(_) => Err(invalid_request_error(
            "cursor must be the value of meta.cursor in the previous response",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::Timestamp;

    #[test]
    fn next_cursor_is_the_number_of_the_last_entry_on_the_page() {
        let entries = |numbers: &[u64]| {
            let entry = |number: &u64| HistoryEntry {
                number: *number,
                at: Timestamp::UNIX_EPOCH,
                org: None,
                status: "online".to_owned(),
                reason: "connected".to_owned(),
            };
            numbers.iter().map(entry).collect::<Vec<_>>()
        };
        let mut page = entries(&[9, 7, 4]);
        assert_eq!(next_cursor(&mut page, 2), Some("7".to_owned()));
        assert_eq!(page, entries(&[9, 7]));
        assert_eq!(next_cursor(&mut page, 2), None);
        assert_eq!(next_cursor(&mut page, 0), None);
        assert!(page.is_empty());
    }

    #[test]
    fn cursor_is_a_number() {
        assert_eq!(parse_cursor(None).unwrap(), None);
        assert_eq!(parse_cursor(Some("")).unwrap(), None);
        assert_eq!(parse_cursor(Some("7")).unwrap(), Some(7));
        let too_large = "99999999999999999999";
        assert_eq!(parse_cursor(Some(too_large)).unwrap(), Some(u64::MAX));
        for invalid in ["-1", "+1", "x", "1.0"] {
            assert!(parse_cursor(Some(invalid)).is_err(), "{invalid}");
        }
    }
}
