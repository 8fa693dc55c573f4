//! `POST /v1/connection/reconnect` (management): sends a reconnect command to a client. The client
//! then disconnects, and reconnects after a delay.

use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::ToSchema;

use super::{NodeRef, send_command};
use crate::SharedState;
use crate::audit::{AuditedAction, run_audited};
use crate::auth::ManagementCaller;
use crate::error::ApiError;
use crate::json;
use crate::request_body::RequestBody;
use crate::send_command::check_delay;
use protocol::Command;

#[derive(Debug, Deserialize, ToSchema)]
struct NodeReconnectRequest {
    #[serde(flatten)]
    node: NodeRef,
    /// Number of seconds before the client reconnects.
    #[schema(
        value_type = i64,
        required = true,
        minimum = 0,
        maximum = 9_223_372_036_854_775_807_i64,
        example = 5
    )]
    #[serde(default, deserialize_with = "crate::send_command::deserialize_integer")]
    delay: Option<i64>,
    /// Reason for the reconnect, for the client's log.
    #[serde(default)]
    message: Option<String>,
}

/// Reconnect a client
///
/// Sends a reconnect command to the client. The client then disconnects, and reconnects after the
/// delay. Responds after the broker has acknowledged the command. Responds 400 if the client is
/// unknown or not connected.
#[utoipa::path(
    post,
    path = "/connection/reconnect",
    operation_id = "v1.connection.reconnect",
    request_body = NodeReconnectRequest,
    responses(
        (status = 200, description = "The broker acknowledged the command. The body is empty."),
        (
            status = 504,
            description = "The broker did not acknowledge the command; it may still arrive.",
            body = ApiError
        ),
    ),
)]
pub(super) async fn reconnect(
    State(state): State<SharedState>,
    caller: ManagementCaller,
    body: RequestBody,
) -> Result<StatusCode, ApiError> {
    let request: NodeReconnectRequest = json::parse_body(&body)?;
    let node = request.node.validate()?;
    let delay = request.delay.ok_or_else(json::missing_fields_error)?;
    let delay_seconds = check_delay(delay)?;
    let action = AuditedAction {
        caller: &caller.audit_name,
        action: "reconnect",
        tenant: &node.account,
        client_id: &node.node_id,
    };
    let command = Command::Reconnect {
        delay_seconds,
        message: request.message.unwrap_or_default(),
    };
    let send = send_command(&state, &node, &command, state.ack_timeout);
    run_audited(&action, send).await?;
    Ok(StatusCode::OK)
}
