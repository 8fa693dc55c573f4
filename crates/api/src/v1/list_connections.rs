//! `GET /v1/connection` and `GET /v1/connection/{account}` (management): list connected clients.

use axum::extract::rejection::PathRejection;
use axum::extract::{OriginalUri, Path, State};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::unknown_account_error;
use crate::audit::{AuditedAction, run_audited};
use crate::auth::ManagementCaller;
use crate::error::{self, ApiError};
use crate::large_responses::LargeResponsePermit;
use crate::pagination::{DEFAULT_PAGE_SIZE, PageParams, Paginated};
use crate::{ApiState, SharedState};
use domain::{ClientId, Tenant};

const INVALID_INPUT_TITLE: &str = "Unable to process input parameters";

/// The connected clients of one account.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct AccountConnections {
    account: String,
    /// Organization id. Present only if the account number is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    org_id: Option<String>,
    /// Ids of the connected clients.
    connections: Vec<String>,
}

/// List the connections of all tenants
///
/// Returns client ids, grouped by account. Offset, limit and count refer to connections, not to
/// accounts.
#[utoipa::path(
    get,
    path = "/connection",
    operation_id = "v1.connection.list",
    params(PageParams),
    responses((
        status = 200,
        description = "A page of client ids, grouped by account.",
        body = Paginated<AccountConnections>
    )),
)]
pub(super) async fn list_all_connections(
    State(state): State<SharedState>,
    caller: ManagementCaller,
    OriginalUri(uri): OriginalUri,
) -> Result<Response, ApiError> {
    let page = PageParams::from_query(&uri, INVALID_INPUT_TITLE)?;
    let action = AuditedAction {
        caller: &caller.audit_name,
        action: "list",
        tenant: "",
        client_id: "",
    };
    let list_clients = async {
        let permit = permit_for(&state, page).await;
        let clients = state
            .connections
            .list_all_clients(page.offset, page.limit)
            .await?;
        Ok((permit, clients))
    };
    let (permit, client_page) = run_audited(&action, list_clients).await?;
    let data = group_by_account(client_page.clients);
    let response = Paginated::offset_page(&uri, page, client_page.total_count, data);
    Ok(state.large_responses.respond_json(&response, permit))
}

/// List the connections of an account
#[utoipa::path(
    get,
    path = "/connection/{account}",
    operation_id = "v1.connection.list.account",
    params(
        (
            "account" = String,
            Path,
            description = "Account number. Digits only.",
            pattern = "^[0-9]+$",
            example = "111000"
        ),
        PageParams,
    ),
    responses(
        (status = 200, description = "A page of client ids.", body = Paginated<String>),
        (status = 404, description = "The account number contains a non-digit.", body = ApiError),
    ),
)]
pub(super) async fn list_account_connections(
    State(state): State<SharedState>,
    caller: ManagementCaller,
    account: Result<Path<String>, PathRejection>,
    OriginalUri(uri): OriginalUri,
) -> Result<Response, ApiError> {
    let account = account.map(|Path(account)| account).unwrap_or_default();
    if !account.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(error::path_not_found().await);
    }
    let page = PageParams::from_query(&uri, INVALID_INPUT_TITLE)?;
    let action = AuditedAction {
        caller: &caller.audit_name,
        action: "list",
        tenant: &account,
        client_id: "",
    };
    let list_clients = async {
        let org = state.find_org_by_account(&account).await?;
        let org = org.ok_or_else(|| unknown_account_error(INVALID_INPUT_TITLE))?;
        let permit = permit_for(&state, page).await;
        let clients = state
            .connections
            .list_clients_for_org(&org, page.offset, page.limit)
            .await?;
        Ok((permit, clients))
    };
    let (permit, client_page) = run_audited(&action, list_clients).await?;
    let client_ids = client_page.clients.into_iter();
    let data = client_ids.map(|(_, client_id)| client_id.to_string());
    let count = client_page.total_count;
    let response = Paginated::offset_page(&uri, page, count, data.collect());
    Ok(state.large_responses.respond_json(&response, permit))
}

/// Waits for a permit if the page can be large. A page of the default size is small.
async fn permit_for(state: &ApiState, page: PageParams) -> Option<LargeResponsePermit> {
    if page.limit <= DEFAULT_PAGE_SIZE {
        return None;
    }
    state.large_responses.permit().await
}

/// Groups clients by account number. The groups are in the order in which their first clients occur
/// in `clients`.
///
/// Clients without an account number are grouped by organization. Otherwise one group could contain
/// clients of different organizations.
fn group_by_account(clients: Vec<(Tenant, ClientId)>) -> Vec<AccountConnections> {
    let mut groups: Vec<AccountConnections> = Vec::new();
    for (tenant, client_id) in clients {
        let org_id = tenant.account.is_empty().then(|| tenant.org_id.to_string());
        let is_same_tenant = |group: &&mut AccountConnections| {
            group.account == tenant.account && group.org_id == org_id
        };
        let client_id = client_id.to_string();
        // Clients of one account are usually adjacent in the list. Therefore the search starts at
        // the last group.
        match groups.iter_mut().rev().find(is_same_tenant) {
            Some(group) => group.connections.push(client_id),
            None => groups.push(AccountConnections {
                account: tenant.account,
                org_id,
                connections: vec![client_id],
            }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::OrgId;

    fn client(org: &str, account: &str, client_id: &str) -> (Tenant, ClientId) {
        let tenant = Tenant {
            org_id: OrgId::new(org).unwrap(),
            account: account.to_owned(),
        };
        (tenant, ClientId::new(client_id).unwrap())
    }

    #[test]
    fn clients_without_an_account_number_are_grouped_by_organization() {
        let groups = group_by_account(vec![
            client("1", "010", "a"),
            client("1", "010", "b"),
            client("2", "", "c"),
            client("3", "", "d"),
            client("4", "010", "e"),
        ]);
        let group = |account: &str, org: Option<&str>, client_ids: &[&str]| AccountConnections {
            account: account.to_owned(),
            org_id: org.map(str::to_owned),
            connections: client_ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        assert_eq!(
            groups,
            [
                group("010", None, &["a", "b", "e"]),
                group("", Some("2"), &["c"]),
                group("", Some("3"), &["d"]),
            ]
        );
    }
}
