//! `POST /v1/message`: a message to one client.

use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::IntoResponse;
use bytes::Bytes;
use serde::Deserialize;

use super::same_account;
use crate::api::auth::AccountCaller;
use crate::api::error::ApiError;
use crate::api::sending::{self, Message};
use crate::api::{Shared, json};

#[derive(Debug, Deserialize)]
struct MessageRequest {
    #[serde(default)]
    account: String,
    #[serde(default)]
    recipient: String,
    #[serde(flatten)]
    message: Message,
}

pub(super) async fn send(
    State(shared): State<Shared>,
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
    sending::send(&shared, found, message).await
}
