//! `POST /v1/connection/ping` (management): sends a ping without waiting for the pong.

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::{Object, Type};

use super::NodeRef;
use crate::audit::{AuditedAction, run_audited};
use crate::auth::ManagementCaller;
use crate::connection_status::ConnectionStatus;
use crate::error::ApiError;
use crate::json::{self, Json};
use crate::request_body::RequestBody;
use crate::{ApiState, SharedState};
use delivery::SendError;
use protocol::Command;

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct NodePingResponse {
    status: ConnectionStatus,
    /// Always null. Existing callers expect this field.
    #[schema(schema_with = null_schema)]
    payload: (),
}

fn null_schema() -> Object {
    Object::with_type(Type::Null)
}

/// Ping a client
///
/// Responds after the broker has acknowledged the ping. Does not wait for the client's response.
#[utoipa::path(
    post,
    path = "/connection/ping",
    operation_id = "v1.connection.ping",
    request_body = NodeRef,
    responses(
        (status = 200, description = "Whether the client is connected.", body = NodePingResponse),
        (
            status = 504,
            description = "The broker did not acknowledge the ping; it may still arrive.",
            body = ApiError
        ),
    ),
)]
pub(super) async fn ping(
    State(state): State<SharedState>,
    caller: ManagementCaller,
    body: RequestBody,
) -> Result<Json<NodePingResponse>, ApiError> {
    let node = json::parse_body::<NodeRef>(&body)?.validate()?;
    let action = AuditedAction {
        caller: &caller.audit_name,
        action: "ping",
        tenant: &node.account,
        client_id: &node.node_id,
    };
    let status = run_audited(&action, send_ping(&state, &node)).await?;
    Ok(Json(NodePingResponse {
        status,
        payload: (),
    }))
}

/// Sends a ping command to a client, and returns whether the client is connected.
///
/// The handshake dialect has no ping command. For a client of this dialect, the function sends
/// nothing and returns the recorded status.
async fn send_ping(state: &ApiState, node: &NodeRef) -> Result<ConnectionStatus, ApiError> {
    let Some(connection) = node.find_connection(state).await? else {
        return Ok(ConnectionStatus::Disconnected);
    };
    let send_result = state
        .delivery
        .send_command(&connection, &Command::Ping, state.ack_timeout)
        .await;
    match send_result {
        Ok(_) => Ok(ConnectionStatus::Connected),
        Err(SendError::NotConnected) => Ok(ConnectionStatus::Disconnected),
        Err(error) => Err(ApiError::send_failed("Ping failed", error)),
    }
}
