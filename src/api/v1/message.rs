//! `POST /v1/message`: a message to one client.

use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::IntoResponse;
use bytes::Bytes;
use serde::Deserialize;
use utoipa::ToSchema;

use super::same_account;
use crate::api::auth::AccountCaller;
use crate::api::error::ApiError;
use crate::api::send_message::{self, Message, Sent};
use crate::api::{SharedState, json};

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = MessageToNode)]
struct MessageRequest {
    /// The caller's account, to which the client belongs.
    #[serde(default)]
    #[schema(required = true, min_length = 1, example = "111000")]
    account: String,
    /// The client.
    #[serde(default)]
    #[schema(required = true, min_length = 1, example = "my-machine")]
    recipient: String,
    #[serde(flatten)]
    message: Message,
}

/// Send a message
///
/// PendingResponses when the broker has the message.
#[utoipa::path(
    post,
    path = "/message",
    operation_id = "v1.message.send",
    request_body = MessageRequest,
    responses(
        (status = 201, description = "The broker has the message.", body = Sent),
        (status = 403, description = "The account is not the caller's.", body = ApiError),
        (status = 404, description = "The account has no connection to that client.", body = ApiError),
        (status = 504, description = "The broker does not confirm it: the message may still arrive.", body = ApiError),
    ),
)]
pub(super) async fn send(
    State(shared): State<SharedState>,
    caller: AccountCaller,
    body: Result<Bytes, BytesRejection>,
) -> Result<impl IntoResponse, ApiError> {
    let request: MessageRequest = json::read(body)?;
    let MessageRequest {
        account,
        recipient,
        message,
    } = request;
    if account.is_empty() || recipient.is_empty() || !message.has_directive() {
        return Err(json::missing_fields());
    }
    same_account(&caller, &account)?;
    let message = message.checked()?;
    let found = match shared.org_of(&account).await? {
        Some(org) => shared.reachable(&org, &recipient).await?,
        None => None,
    };
    send_message::send(&shared, found, message).await
}
