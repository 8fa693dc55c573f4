//! `POST /v2/connections/{client_id}/reconnect`: sends a reconnect command to a client. The client
//! then disconnects, and reconnects after a delay.

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
use crate::send_command::check_delay;
use protocol::Command;

#[derive(Debug, Deserialize, ToSchema)]
struct ReconnectRequest {
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
/// delay. Responds after the broker has acknowledged the command.
#[utoipa::path(
    post,
    path = "/connections/{client_id}/reconnect",
    operation_id = "v2.connection.reconnect",
    params(ClientIdParam),
    request_body = ReconnectRequest,
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
pub(super) async fn reconnect(
    State(state): State<SharedState>,
    caller: OrgCaller,
    path: Result<ClientIdPath, PathRejection>,
    body: RequestBody,
) -> Result<Json<CommandAccepted>, ApiError> {
    let ReconnectRequest { delay, message } = json::parse_body(&body)?;
    let delay_seconds = check_delay(delay.ok_or_else(json::missing_fields_error)?)?;
    let command = Command::Reconnect {
        delay_seconds,
        message: message.unwrap_or_default(),
    };
    let client_id = client_id_from_path(path);
    let ack_timeout = state.ack_timeout;
    send_command(
        &state,
        &caller,
        "reconnect",
        &client_id,
        &command,
        ack_timeout,
    )
    .await
}
