//! `POST /v1/connection/disconnect`, for management: tells a client to leave and stay away.

use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Node, command};
use crate::api::Shared;
use crate::api::audit::{Action, audited};
use crate::api::auth::Manager;
use crate::api::error::ApiError;
use crate::api::json::{self, Json};
use crate::protocol::Command;

#[derive(Debug, Deserialize)]
struct Disconnect {
    #[serde(flatten)]
    node: Node,
    #[serde(default)]
    message: Option<String>,
}

pub(super) async fn disconnect(
    State(shared): State<Shared>,
    manager: Manager,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, ApiError> {
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
    audited(&action, command(&shared, &node, &order).await)?;
    Ok(Json(json!({})))
}
