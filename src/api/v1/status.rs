//! `POST /v1/connection_status` and, for management, `POST /v1/connection/status`: connected or not.

use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use bytes::Bytes;

use super::{Node, StatusView, same_account, unknown_account};
use crate::api::audit::{Action, audited};
use crate::api::auth::{AccountCaller, ManagementCaller};
use crate::api::error::ApiError;
use crate::api::json::{self, Json};
use crate::api::{ApiState, SharedState};
use crate::domain::OrgId;

/// Ask whether a client is connected
#[utoipa::path(
    post,
    path = "/connection_status",
    operation_id = "v1.connection.status",
    request_body = Node,
    responses(
        (status = 200, description = "Connected or not.", body = StatusView),
        (status = 403, description = "The account is not the caller's.", body = ApiError),
    ),
)]
pub(super) async fn for_tenant(
    State(shared): State<SharedState>,
    caller: AccountCaller,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<StatusView>, ApiError> {
    let node = json::read::<Node>(body)?.checked()?;
    same_account(&caller, &node.account)?;
    let org = org(&shared, &node).await?;
    let found = shared.reachable(&org, &node.node_id).await?;
    Ok(Json(found.into()))
}

/// Ask whether any tenant's client is connected
#[utoipa::path(
    post,
    path = "/connection/status",
    operation_id = "v1.connection.status.multiorg",
    request_body = Node,
    responses((status = 200, description = "Connected or not.", body = StatusView)),
)]
pub(super) async fn for_management(
    State(shared): State<SharedState>,
    manager: ManagementCaller,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<StatusView>, ApiError> {
    let node = json::read::<Node>(body)?.checked()?;
    let action = Action {
        who: &manager.name,
        name: "status",
        tenant: &node.account,
        client: &node.node_id,
    };
    let outcome = async {
        let org = org(&shared, &node).await?;
        let found = shared.own(&org, &node.node_id).await?;
        Ok(Json(found.into()))
    };
    audited(&action, outcome).await
}

async fn org(parts: &ApiState, node: &Node) -> Result<OrgId, ApiError> {
    let org = parts.org_of(&node.account).await?;
    org.ok_or_else(|| unknown_account("Unable to translate account to org_id"))
}
