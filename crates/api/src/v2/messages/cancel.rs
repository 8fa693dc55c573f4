//! `DELETE /v2/messages/{id}`: cancels a queued message.

use axum::extract::rejection::PathRejection;
use axum::extract::{OriginalUri, State};
use axum::http::StatusCode;

use super::super::reject_unknown_params;
use super::{MessageIdParam, MessageIdPath, message_id_from_path, no_message};
use crate::SharedState;
use crate::auth::OrgCaller;
use crate::error::ApiError;
use crate::pagination::query_params;
use store::CancelOutcome;

/// Cancel a queued message
///
/// A message can be cancelled only before it is sent.
#[utoipa::path(
    delete,
    path = "/messages/{id}",
    operation_id = "v2.messages.cancel",
    params(MessageIdParam),
    responses(
        (status = 204, description = "The message is cancelled."),
        (status = 400, description = "The request has a query parameter, or an invalid identity."),
        (
            status = 404,
            description = "The organization has no such tracked message.",
            body = ApiError
        ),
        (
            status = 409,
            description = "The message is not queued. `state` is its present state.",
            body = ApiError
        ),
    ),
)]
pub(in crate::v2) async fn cancel(
    State(state): State<SharedState>,
    caller: OrgCaller,
    path: Result<MessageIdPath, PathRejection>,
    OriginalUri(uri): OriginalUri,
) -> Result<StatusCode, ApiError> {
    reject_unknown_params(&query_params(&uri), &[])?;
    let id = message_id_from_path(path)?;
    let now = state.clock.now();
    let outcome = state
        .messages
        .cancel_message(&caller.org_id, &id, now)
        .await?;
    match outcome {
        CancelOutcome::Cancelled => Ok(StatusCode::NO_CONTENT),
        CancelOutcome::NotQueued(message_state) => Err(ApiError::not_queued(message_state)),
        CancelOutcome::NotFound => Err(no_message()),
    }
}
