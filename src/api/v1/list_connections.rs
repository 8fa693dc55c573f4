//! `GET /v1/connection` and `GET /v1/connection/{account}` (management): list connected clients.

use axum::extract::rejection::PathRejection;
use axum::extract::{OriginalUri, Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use super::unknown_account;
use crate::api::SharedState;
use crate::api::audit::{AuditedAction, run_audited};
use crate::api::auth::ManagementCaller;
use crate::api::error::{self, ApiError};
use crate::api::json::Json;
use crate::api::pagination::{PageParams, Paginated};
use crate::domain::{ClientId, Tenant};
use crate::store::PageRequest;

const INVALID_INPUT_TITLE: &str = "Unable to process input parameters";

/// The connected clients of one account.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct AccountConnections {
    account: String,
    /// Organization id. Only present if the account number is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    org_id: Option<String>,
    /// Client ids.
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
pub(super) async fn list_all(
    State(state): State<SharedState>,
    caller: ManagementCaller,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<Paginated<AccountConnections>>, ApiError> {
    let page = PageParams::from_query(&uri, INVALID_INPUT_TITLE)?;
    let action = AuditedAction {
        caller: &caller.name,
        action: "list",
        tenant: "",
        client_id: "",
    };
    let list = async { Ok(state.store.list_all(page.offset, page.limit).await?) };
    let list = run_audited(&action, list).await?;
    let data = group_by_account(list.clients);
    Ok(Json(Paginated::by_offset(&uri, page, list.count, data)))
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
pub(super) async fn list_for_account(
    State(state): State<SharedState>,
    caller: ManagementCaller,
    account: Result<Path<String>, PathRejection>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<Paginated<String>>, ApiError> {
    let account = account.map(|Path(account)| account).unwrap_or_default();
    if !account.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(error::path_not_found().await);
    }
    let page = PageParams::from_query(&uri, INVALID_INPUT_TITLE)?;
    let action = AuditedAction {
        caller: &caller.name,
        action: "list",
        tenant: &account,
        client_id: "",
    };
    let list = async {
        let org = state.org_of(&account).await?;
        let org = org.ok_or_else(|| unknown_account(INVALID_INPUT_TITLE))?;
        let request = PageRequest::at_offset(page.offset, page.limit);
        Ok(state.store.list_for_org(&org, &request).await?)
    };
    let list = run_audited(&action, list).await?;
    let client_ids = list.connections.into_iter();
    let client_ids = client_ids.map(|connection| connection.client_id.to_string());
    let page = Paginated::by_offset(&uri, page, list.count, client_ids.collect());
    Ok(Json(page))
}

/// Groups clients by account, ordered by the first client of each account.
///
/// Clients without an account number are grouped by organization, so clients of different
/// organizations never share a group.
fn group_by_account(clients: Vec<(Tenant, ClientId)>) -> Vec<AccountConnections> {
    let mut groups: Vec<AccountConnections> = Vec::new();
    for (tenant, client_id) in clients {
        let org_id = tenant.account.is_empty().then(|| tenant.org_id.to_string());
        let is_same_tenant = |group: &&mut AccountConnections| {
            group.account == tenant.account && group.org_id == org_id
        };
        let client_id = client_id.to_string();
        // Clients of an account are usually adjacent, so search from the end.
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
    use crate::domain::OrgId;

    fn client(org: &str, account: &str, client_id: &str) -> (Tenant, ClientId) {
        let tenant = Tenant {
            org_id: OrgId::new(org).unwrap(),
            account: account.to_owned(),
        };
        (tenant, ClientId::new(client_id).unwrap())
    }

    #[test]
    fn clients_are_grouped_by_account_or_by_organization_if_account_is_empty() {
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
