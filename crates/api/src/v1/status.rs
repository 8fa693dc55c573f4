//! `POST /v1/connection_status` and `POST /v1/connection/status` (management): return the
//! connection status of a client.

use axum::extract::State;

use super::{NodeRef, NodeStatus, check_account, unknown_account_error};
use crate::audit::{AuditedAction, run_audited};
use crate::auth::{AccountCaller, ManagementCaller};
use crate::error::ApiError;
use crate::json::{self, Json};
use crate::request_body::RequestBody;
use crate::{ApiState, SharedState};
use domain::OrgId;

/// Get the connection status of a client
#[utoipa::path(
    post,
    path = "/connection_status",
    operation_id = "v1.connection.status",
    request_body = NodeRef,
    responses(
        (status = 200, description = "Status of the client.", body = NodeStatus),
        (status = 403, description = "The account is not the caller's account.", body = ApiError),
    ),
)]
pub(super) async fn tenant_status(
    State(state): State<SharedState>,
    caller: AccountCaller,
    body: RequestBody,
) -> Result<Json<NodeStatus>, ApiError> {
    let node = json::parse_body::<NodeRef>(&body)?.validate()?;
    check_account(&caller, &node.account)?;
    let org = org_of_node(&state, &node).await?;
    let connection = state.find_reachable_connection(&org, &node.node_id).await?;
    Ok(Json(connection.into()))
}

/// Get the connection status of a client of any tenant
#[utoipa::path(
    post,
    path = "/connection/status",
    operation_id = "v1.connection.status.multiorg",
    request_body = NodeRef,
    responses((status = 200, description = "Status of the client.", body = NodeStatus)),
)]
pub(super) async fn management_status(
    State(state): State<SharedState>,
    caller: ManagementCaller,
    body: RequestBody,
) -> Result<Json<NodeStatus>, ApiError> {
    let node = json::parse_body::<NodeRef>(&body)?.validate()?;
    let action = AuditedAction {
        caller: &caller.audit_name,
        action: "status",
        tenant: &node.account,
        client_id: &node.node_id,
    };
    let find_status = async {
        let org = org_of_node(&state, &node).await?;
        let connection = state.find_org_connection(&org, &node.node_id).await?;
        Ok(Json(connection.into()))
    };
    run_audited(&action, find_status).await
}

/// Finds the organization that has the account number of the client.
async fn org_of_node(state: &ApiState, node: &NodeRef) -> Result<OrgId, ApiError> {
    let org = state.find_org_by_account(&node.account).await?;
    org.ok_or_else(|| unknown_account_error("Unable to translate account to org_id"))
}
