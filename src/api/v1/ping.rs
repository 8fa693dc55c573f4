//! `POST /v1/connection/ping`, for management: sends a ping. The pong is not waited for.

use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::Node;
use crate::api::audit::{Action, audited};
use crate::api::auth::Manager;
use crate::api::error::ApiError;
use crate::api::json::{self, Json};
use crate::api::{Parts, Shared};
use crate::deliver::SendError;
use crate::protocol::Command;

#[derive(Debug, Serialize)]
pub(super) struct Pinged {
    status: &'static str,
    /// Always null; callers expect it to be there.
    payload: Value,
}

pub(super) async fn ping(
    State(shared): State<Shared>,
    manager: Manager,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Pinged>, ApiError> {
    let node = json::read::<Node>(body)?.checked()?;
    let action = Action {
        who: &manager.name,
        name: "ping",
        tenant: &node.account,
        client: &node.node_id,
    };
    let is_connected = audited(&action, is_connected(&shared, &node).await)?;
    Ok(Json(Pinged {
        status: if is_connected {
            "connected"
        } else {
            "disconnected"
        },
        payload: Value::Null,
    }))
}

/// A client whose dialect has no ping is connected as far as is known.
async fn is_connected(parts: &Parts, node: &Node) -> Result<bool, ApiError> {
    let Some(connection) = node.find(parts).await? else {
        return Ok(false);
    };
    match parts.delivery.command(&connection, &Command::Ping).await {
        Ok(_) => Ok(true),
        Err(SendError::NotConnected) => Ok(false),
        Err(error) => Err(ApiError::not_sent("Ping failed", error)),
    }
}
