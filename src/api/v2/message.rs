//! `POST /v2/connections/{client_id}/message`: a message to one client.

use axum::extract::State;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::response::IntoResponse;
use bytes::Bytes;

use super::{ClientIdPath, ClientInPath, named};
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::send_message::{self, Message, Sent};
use crate::api::{SharedState, json};

/// Send a message
///
/// PendingResponses when the broker has the message.
#[utoipa::path(
    post,
    path = "/connections/{client_id}/message",
    operation_id = "v2.connection.message",
    params(ClientInPath),
    request_body = Message,
    responses(
        (status = 201, description = "The broker has the message.", body = Sent),
        (status = 404, description = "The organisation has no connection to that client.", body = ApiError),
        (status = 504, description = "The broker does not confirm it: the message may still arrive.", body = ApiError),
    ),
)]
pub(super) async fn send(
    State(shared): State<SharedState>,
    caller: Caller,
    client_id: Result<ClientIdPath, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<impl IntoResponse, ApiError> {
    let request = json::read::<Message>(body)?.checked()?;
    let found = shared.reachable(&caller.org, &named(client_id)).await?;
    send_message::send(&shared, found, request).await
}
