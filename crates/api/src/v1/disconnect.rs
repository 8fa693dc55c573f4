//! `POST /v1/connection/disconnect` (management): sends a disconnect command to a client. The
//! client then disconnects and does not reconnect.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{NodeRef, send_command};
use crate::SharedState;
use crate::audit::{AuditedAction, run_audited};
use crate::auth::ManagementCaller;
use crate::error::ApiError;
use crate::json::{self, Json};
use crate::request_body::RequestBody;
use protocol::Command;

#[derive(Debug, Deserialize, ToSchema)]
struct NodeDisconnectRequest {
    #[serde(flatten)]
    node: NodeRef,
    /// Reason for the disconnect, for the client's log.
    #[serde(default)]
    message: Option<String>,
}

/// An empty JSON object. Existing callers expect `{}` instead of an empty body.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EmptyResponse {}

/// Disconnect a client
///
/// Sends a disconnect command to the client. The client then disconnects and does not reconnect.
/// Responds after the broker has acknowledged the command. Responds 400 if the client is unknown or
/// not connected.
#[utoipa::path(
    post,
    path = "/connection/disconnect",
    operation_id = "v1.connection.disconnect",
    request_body = NodeDisconnectRequest,
    responses(
        (status = 200, description = "The broker acknowledged the command.", body = EmptyResponse),
        (
            status = 504,
            description = "The broker did not acknowledge the command; it may still arrive.",
            body = ApiError
        ),
    ),
)]
pub(super) async fn disconnect(
    State(state): State<SharedState>,
    caller: ManagementCaller,
    body: RequestBody,
) -> Result<Json<EmptyResponse>, ApiError> {
    let request: NodeDisconnectRequest = json::parse_body(&body)?;
    let node = request.node.validate()?;
    let action = AuditedAction {
        caller: &caller.audit_name,
        action: "disconnect",
        tenant: &node.account,
        client_id: &node.node_id,
    };
    let command = Command::Disconnect {
        message: request.message.unwrap_or_default(),
    };
    let send = send_command(&state, &node, &command, state.ack_timeout);
    run_audited(&action, send).await?;
    Ok(Json(EmptyResponse {}))
}
