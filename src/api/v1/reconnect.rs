//! `POST /v1/connection/reconnect`, for management: tells a client to leave and come back.

use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use bytes::Bytes;
use serde::Deserialize;
use utoipa::ToSchema;

use super::{Node, command};
use crate::api::SharedState;
use crate::api::audit::{Action, audited};
use crate::api::auth::ManagementCaller;
use crate::api::error::ApiError;
use crate::api::{json, send_command};
use crate::protocol::Command;

#[derive(Debug, Deserialize, ToSchema)]
struct Reconnect {
    #[serde(flatten)]
    node: Node,
    /// Seconds that the client stays away.
    #[schema(value_type = i64, required = true, minimum = 0, maximum = 9_223_372_036_854_775_807_i64, example = 5)]
    #[serde(default, deserialize_with = "send_command::whole")]
    delay: Option<i64>,
    /// Why, for the client's log.
    #[serde(default)]
    message: Option<String>,
}

/// Tell a client to leave and come back
///
/// PendingResponses when the broker has the order. A client that is unknown, or not connected, is 400.
#[utoipa::path(
    post,
    path = "/connection/reconnect",
    operation_id = "v1.connection.reconnect",
    request_body = Reconnect,
    responses(
        (status = 200, description = "The broker has the order. No body."),
        (status = 504, description = "The broker does not confirm it: the order may still arrive.", body = ApiError),
    ),
)]
pub(super) async fn reconnect(
    State(shared): State<SharedState>,
    manager: ManagementCaller,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, ApiError> {
    let request: Reconnect = json::read(body)?;
    let node = request.node.checked()?;
    let delay = request.delay.ok_or_else(json::missing_fields)?;
    let delay_seconds = send_command::delay(delay)?;
    let action = Action {
        who: &manager.name,
        name: "reconnect",
        tenant: &node.account,
        client: &node.node_id,
    };
    let order = Command::Reconnect {
        delay_seconds,
        message: request.message.unwrap_or_default(),
    };
    audited(&action, command(&shared, &node, &order)).await?;
    Ok(StatusCode::OK)
}
