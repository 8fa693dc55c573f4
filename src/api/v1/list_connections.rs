//! `GET /v1/connection` and `GET /v1/connection/{account}`, for management: who is connected.

use axum::extract::rejection::PathRejection;
use axum::extract::{OriginalUri, Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use super::unknown_account;
use crate::api::SharedState;
use crate::api::audit::{Action, audited};
use crate::api::auth::ManagementCaller;
use crate::api::error::{self, ApiError};
use crate::api::json::Json;
use crate::api::pagination::{Page, Paginated};
use crate::domain::{ClientId, Tenant};
use crate::store::PageRequest;

const BAD_INPUT: &str = "Unable to process input parameters";

/// The connections of one account.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = AccountConnections)]
pub(super) struct Group {
    account: String,
    /// Only where there is no account number to go by.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    org_id: Option<String>,
    connections: Vec<String>,
}

/// List everybody's connections
///
/// Client ids by account. Offset, limit and count are of connections, not of accounts.
#[utoipa::path(
    get,
    path = "/connection",
    operation_id = "v1.connection.list",
    params(Page),
    responses((status = 200, description = "A page of client ids, by account.", body = Paginated<Group>)),
)]
pub(super) async fn all(
    State(shared): State<SharedState>,
    manager: ManagementCaller,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<Paginated<Group>>, ApiError> {
    let page = Page::read(&uri, BAD_INPUT)?;
    let action = Action {
        who: &manager.name,
        name: "list",
        tenant: "",
        client: "",
    };
    let listed = async { Ok(shared.store.list_all(page.offset, page.limit).await?) };
    let listed = audited(&action, listed).await?;
    let data = by_account(listed.clients);
    Ok(Json(Paginated::new(&uri, page, listed.count, data)))
}

/// List an account's connections
#[utoipa::path(
    get,
    path = "/connection/{account}",
    operation_id = "v1.connection.list.account",
    params(
        ("account" = String, Path, description = "The account number: digits.", pattern = "^[0-9]+$", example = "111000"),
        Page,
    ),
    responses(
        (status = 200, description = "A page of client ids.", body = Paginated<String>),
        (status = 404, description = "That cannot be an account number.", body = ApiError),
    ),
)]
pub(super) async fn of_account(
    State(shared): State<SharedState>,
    manager: ManagementCaller,
    account: Result<Path<String>, PathRejection>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<Paginated<String>>, ApiError> {
    let account = account.map(|Path(account)| account).unwrap_or_default();
    if !account.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(error::no_such_path().await);
    }
    let page = Page::read(&uri, BAD_INPUT)?;
    let action = Action {
        who: &manager.name,
        name: "list",
        tenant: &account,
        client: "",
    };
    let listed = async {
        let org = shared.org_of(&account).await?;
        let org = org.ok_or_else(|| unknown_account(BAD_INPUT))?;
        let wanted = PageRequest::page(page.offset, page.limit);
        let listing = shared.store.list_for_org(&org, &wanted);
        Ok(listing.await?)
    };
    let listing = audited(&action, listed).await?;
    let ids = listing.connections.into_iter();
    let ids = ids.map(|connection| connection.client_id.to_string());
    let page = Paginated::new(&uri, page, listing.count, ids.collect());
    Ok(Json(page))
}

/// In the order in which accounts come first. Who has no account number is listed by organisation,
/// so that nobody is put together with strangers.
fn by_account(clients: Vec<(Tenant, ClientId)>) -> Vec<Group> {
    let mut accounts: Vec<Group> = Vec::new();
    for (tenant, client) in clients {
        let org_id = tenant.account.is_empty().then(|| tenant.org_id.to_string());
        let same = |known: &&mut Group| known.account == tenant.account && known.org_id == org_id;
        let client = client.to_string();
        // An account's connections mostly follow each other.
        match accounts.iter_mut().rev().find(same) {
            Some(known) => known.connections.push(client),
            None => accounts.push(Group {
                account: tenant.account,
                org_id,
                connections: vec![client],
            }),
        }
    }
    accounts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::OrgId;

    fn client(org: &str, account: &str, id: &str) -> (Tenant, ClientId) {
        let tenant = Tenant {
            org_id: OrgId::new(org).unwrap(),
            account: account.to_owned(),
        };
        (tenant, ClientId::new(id).unwrap())
    }

    #[test]
    fn connections_are_grouped_by_account_and_without_one_by_organisation() {
        let listed = by_account(vec![
            client("1", "010", "a"),
            client("1", "010", "b"),
            client("2", "", "c"),
            client("3", "", "d"),
            client("4", "010", "e"),
        ]);
        let account = |account: &str, org: Option<&str>, ids: &[&str]| Group {
            account: account.to_owned(),
            org_id: org.map(str::to_owned),
            connections: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        assert_eq!(
            listed,
            [
                account("010", None, &["a", "b", "e"]),
                account("", Some("2"), &["c"]),
                account("", Some("3"), &["d"]),
            ]
        );
    }
}
