//! `POST /v2/connections/{client_id}/disconnect`: sends a disconnect command to a client. The
//! client then disconnects and does not reconnect.

use axum::extract::State;
use axum::extract::rejection::PathRejection;
use serde::Deserialize;
use utoipa::ToSchema;

use super::{ClientIdParam, ClientIdPath, CommandAccepted, client_id_from_path, send_command};
use crate::SharedState;
use crate::auth::OrgCaller;
use crate::error::ApiError;
use crate::json::{self, Json};
use crate::request_body::RequestBody;
use protocol::Command;

#[derive(Debug, Default, Deserialize, ToSchema)]
struct DisconnectRequest {
    /// Reason for the disconnect, for the client's log.
    #[serde(default)]
    message: Option<String>,
}

/// Disconnect a client
///
/// Sends a disconnect command to the client. The client then disconnects and does not reconnect.
/// Responds after the broker has acknowledged the command. The request body is optional.
#[utoipa::path(
    post,
    path = "/connections/{client_id}/disconnect",
    operation_id = "v2.connection.disconnect",
    params(ClientIdParam),
    request_body = Option<DisconnectRequest>,
    responses(
        (
            status = 200,
            description = "The broker acknowledged the command.",
            body = CommandAccepted
        ),
        (
            status = 404,
            description = "The organization has no such connected client.",
            body = ApiError
        ),
        (
            status = 504,
            description = "The broker did not acknowledge the command; it may still arrive.",
            body = ApiError
        ),
    ),
)]
pub(super) async fn disconnect(
    State(state): State<SharedState>,
    caller: OrgCaller,
    path: Result<ClientIdPath, PathRejection>,
    body: RequestBody,
) -> Result<Json<CommandAccepted>, ApiError> {
    let DisconnectRequest { message } = if body.is_empty() {
        DisconnectRequest::default()
    } else {
        json::parse_body(&body)?
    };
    let command = Command::Disconnect {
        message: message.unwrap_or_default(),
    };
    let client_id = client_id_from_path(path);
    let ack_timeout = state.ack_timeout;
    send_command(
        &state,
        &caller,
        "disconnect",
        &client_id,
        &command,
        ack_timeout,
    )
    .await
}
