//! `POST /v1/connection/ping`, for management: sends a ping. The pong is not waited for.

use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use bytes::Bytes;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::{Object, Type};

use super::Node;
use crate::api::audit::{Action, audited};
use crate::api::auth::ManagementCaller;
use crate::api::connection_status::Presence;
use crate::api::error::ApiError;
use crate::api::json::{self, Json};
use crate::api::{ApiState, SharedState};
use crate::delivery::SendError;
use crate::protocol::Command;

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PingResponse {
    status: Presence,
    /// Always null; callers expect it to be there.
    #[schema(schema_with = null)]
    payload: (),
}

fn null() -> Object {
    Object::with_type(Type::Null)
}

/// Ping a client
///
/// PendingResponses when the broker has the ping; the client's answer is not waited for.
#[utoipa::path(
    post,
    path = "/connection/ping",
    operation_id = "v1.connection.ping",
    request_body = Node,
    responses(
        (status = 200, description = "Connected, as far as the broker knows, or not.", body = PingResponse),
        (status = 504, description = "The broker does not confirm it: the ping may still arrive.", body = ApiError),
    ),
)]
pub(super) async fn ping(
    State(shared): State<SharedState>,
    manager: ManagementCaller,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<PingResponse>, ApiError> {
    let node = json::read::<Node>(body)?.checked()?;
    let action = Action {
        who: &manager.name,
        name: "ping",
        tenant: &node.account,
        client: &node.node_id,
    };
    let is_connected = audited(&action, is_connected(&shared, &node)).await?;
    Ok(Json(PingResponse {
        status: if is_connected {
            Presence::Connected
        } else {
            Presence::Disconnected
        },
        payload: (),
    }))
}

/// A client whose dialect has no ping is connected as far as is known.
async fn is_connected(parts: &ApiState, node: &Node) -> Result<bool, ApiError> {
    let Some(connection) = node.find(parts).await? else {
        return Ok(false);
    };
    match parts.delivery.command(&connection, &Command::Ping).await {
        Ok(_) => Ok(true),
        Err(SendError::NotConnected) => Ok(false),
        Err(error) => Err(ApiError::not_sent("Ping failed", error)),
    }
}
