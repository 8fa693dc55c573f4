//! `GET /v2/messages/{id}`: returns a tracked message.

use axum::extract::rejection::PathRejection;
use axum::extract::{OriginalUri, State};

use super::super::reject_unknown_params;
use super::{MessageIdParam, MessageIdPath, MessageView, message_id_from_path, no_message};
use crate::SharedState;
use crate::auth::OrgCaller;
use crate::error::ApiError;
use crate::json::Json;
use crate::pagination::query_params;

/// Get a tracked message
///
/// Returns the state of a message that the organization has sent with `track`, and the client's first
/// answer. The record is stored for a retention time (`messages.retention`) after its last change.
#[utoipa::path(
    get,
    path = "/messages/{id}",
    operation_id = "v2.messages.find",
    params(MessageIdParam),
    responses(
        (status = 200, description = "The message.", body = MessageView),
        (status = 400, description = "The request has a query parameter, or an invalid identity."),
        (
            status = 404,
            description = "The organization has no such tracked message.",
            body = ApiError
        ),
    ),
)]
pub(in crate::v2) async fn find(
    State(state): State<SharedState>,
    caller: OrgCaller,
    path: Result<MessageIdPath, PathRejection>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<MessageView>, ApiError> {
    reject_unknown_params(&query_params(&uri), &[])?;
    let id = message_id_from_path(path)?;
    let message = state.messages.find_message(&caller.org_id, &id).await?;
    message.map(|it| Json(it.into())).ok_or_else(no_message)
}
