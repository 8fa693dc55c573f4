//! `POST /v1/message`: sends a message to a client.

use axum::extract::State;
use axum::response::IntoResponse;
use serde::Deserialize;
use serde::de::IgnoredAny;
use utoipa::ToSchema;

use super::check_account;
use crate::auth::AccountCaller;
use crate::error::ApiError;
use crate::request_body::RequestBody;
use crate::send_message::{self, MessageAccepted, MessageRequest};
use crate::{SharedState, json};
use delivery::MessageSender;

#[derive(Debug, Deserialize, ToSchema)]
struct NodeMessageRequest {
    /// Account number of the client. Must be the caller's own account.
    #[serde(default)]
    #[schema(required = true, min_length = 1, example = "111000")]
    account: String,
    /// Id of the client that receives the message.
    #[serde(default)]
    #[schema(required = true, min_length = 1, example = "my-machine")]
    recipient: String,
    #[serde(flatten)]
    message: MessageRequest,
    #[serde(default)]
    #[schema(ignore)]
    track: Option<IgnoredAny>,
    #[serde(default)]
    #[schema(ignore)]
    queue: Option<IgnoredAny>,
}

impl NodeMessageRequest {
    /// Rejects the fields of v2 that v1 does not have. A caller that uses them relies on their effect.
    fn reject_v2_fields(&self) -> Result<(), ApiError> {
        for (name, value) in [("track", &self.track), ("queue", &self.queue)] {
            if value.is_some() {
                return Err(ApiError::invalid_body(format!(
                    "{name} is not supported in v1; use POST /v2/connections/{{client_id}}/message"
                )));
            }
        }
        Ok(())
    }
}

/// Send a message to a client
///
/// Responds after the broker has acknowledged the message.
#[utoipa::path(
    post,
    path = "/message",
    operation_id = "v1.message.send",
    request_body = NodeMessageRequest,
    responses(
        (
            status = 201,
            description = "The broker acknowledged the message.",
            body = MessageAccepted
        ),
        (status = 403, description = "The account is not the caller's account.", body = ApiError),
        (status = 404, description = "The account has no such connected client.", body = ApiError),
        (
            status = 504,
            description = "The broker did not acknowledge the message; it may still arrive.",
            body = ApiError
        ),
    ),
)]
pub(super) async fn send(
    State(state): State<SharedState>,
    caller: AccountCaller,
    body: RequestBody,
) -> Result<impl IntoResponse, ApiError> {
    let request: NodeMessageRequest = json::parse_body(&body)?;
    request.reject_v2_fields()?;
    let NodeMessageRequest {
        account,
        recipient,
        message,
        ..
    } = request;
    if account.is_empty() || recipient.is_empty() || !message.has_directive() {
        return Err(json::missing_fields_error());
    }
    check_account(&caller, &account)?;
    let content = message.validate()?;
    let org = state.find_org_by_account(&account).await?;
    let connection = match &org {
        Some(org) => state.find_reachable_connection(org, &recipient).await?,
        None => None,
    };
    let sender = org
        .filter(|_| state.tracks_all)
        .map(|org_id| MessageSender {
            org_id,
            caller: caller.audit_name,
            idempotent_request: None,
        });
    send_message::send_message(&state, connection, content, sender, state.ack_timeout).await
}
