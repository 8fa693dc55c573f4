//! `POST /v1/connection/reconnect`, for management: tells a client to leave and come back.

use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use bytes::Bytes;
use serde::Deserialize;

use super::{Node, command};
use crate::api::Shared;
use crate::api::audit::{Action, audited};
use crate::api::auth::Manager;
use crate::api::error::ApiError;
use crate::api::{commands, json};
use crate::protocol::Command;

#[derive(Debug, Deserialize)]
struct Reconnect {
    #[serde(flatten)]
    node: Node,
    delay: Option<i64>,
    #[serde(default)]
    message: Option<String>,
}

pub(super) async fn reconnect(
    State(shared): State<Shared>,
    manager: Manager,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, ApiError> {
    let request: Reconnect = json::read(body)?;
    let node = request.node.checked()?;
    let delay = request.delay.ok_or_else(json::missing_fields)?;
    let delay_seconds = commands::delay(delay)?;
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
    audited(&action, command(&shared, &node, &order).await)?;
    Ok(StatusCode::OK)
}
