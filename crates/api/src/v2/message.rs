//! `POST /v2/connections/{client_id}/message`: sends a message to a client.

use axum::extract::State;
use axum::extract::rejection::PathRejection;
use axum::response::IntoResponse;

use super::{ClientIdParam, ClientIdPath, client_id_from_path};
use crate::auth::OrgCaller;
use crate::error::ApiError;
use crate::request_body::RequestBody;
use crate::send_message::{self, MessageAccepted, MessageRequest};
use crate::{SharedState, json};

/// Send a message to a client
///
/// Responds after the broker has acknowledged the message.
#[utoipa::path(
    post,
    path = "/connections/{client_id}/message",
    operation_id = "v2.connection.message",
    params(ClientIdParam),
    request_body = MessageRequest,
    responses(
        (
            status = 201,
            description = "The broker acknowledged the message.",
            body = MessageAccepted
        ),
        (
            status = 404,
            description = "The organization has no such connected client.",
            body = ApiError
        ),
        (
            status = 504,
            description = "The broker did not acknowledge the message; it may still arrive.",
            body = ApiError
        ),
    ),
)]
pub(super) async fn send(
    State(state): State<SharedState>,
    caller: OrgCaller,
    path: Result<ClientIdPath, PathRejection>,
    body: RequestBody,
) -> Result<impl IntoResponse, ApiError> {
    let content = json::parse_body::<MessageRequest>(&body)?.validate()?;
    let client_id = client_id_from_path(path);
    let connection = state
        .find_reachable_connection(&caller.org_id, &client_id)
        .await?;
    send_message::send_message(&state, connection, content, state.ack_timeout).await
}
