//! `POST /v1/connection/disconnect`, for management: tells a client to leave and stay away.

use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Node, command};
use crate::api::SharedState;
use crate::api::audit::{Action, audited};
use crate::api::auth::ManagementCaller;
use crate::api::error::ApiError;
use crate::api::json::{self, Json};
use crate::protocol::Command;

#[derive(Debug, Deserialize, ToSchema)]
struct Disconnect {
    #[serde(flatten)]
    node: Node,
    /// Why, for the client's log.
    #[serde(default)]
    message: Option<String>,
}

/// Nothing to say; callers expect an object.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Ordered {}

/// Tell a client to leave and stay away
///
/// PendingResponses when the broker has the order. A client that is unknown, or not connected, is 400.
#[utoipa::path(
    post,
    path = "/connection/disconnect",
    operation_id = "v1.connection.disconnect",
    request_body = Disconnect,
    responses(
        (status = 200, description = "The broker has the order.", body = Ordered),
        (status = 504, description = "The broker does not confirm it: the order may still arrive.", body = ApiError),
    ),
)]
pub(super) async fn disconnect(
    State(shared): State<SharedState>,
    manager: ManagementCaller,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Ordered>, ApiError> {
    let request: Disconnect = json::read(body)?;
    let node = request.node.checked()?;
    let action = Action {
        who: &manager.name,
        name: "disconnect",
        tenant: &node.account,
        client: &node.node_id,
    };
    let order = Command::Disconnect {
        message: request.message.unwrap_or_default(),
    };
    audited(&action, command(&shared, &node, &order)).await?;
    Ok(Json(Ordered {}))
}
