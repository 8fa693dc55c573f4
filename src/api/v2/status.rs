//! `GET /v2/connections/{client_id}/status`: connected or not.

use axum::extract::State;
use axum::extract::rejection::PathRejection;
use serde::Serialize;
use utoipa::ToSchema;

use super::{ClientIdPath, ClientInPath, ConnectionView, named};
use crate::api::SharedState;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::json::Json;

#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "status", rename_all = "lowercase")]
pub(super) enum Status {
    Connected(ConnectionView),
    Disconnected,
}

/// Ask whether a client is connected
#[utoipa::path(
    get,
    path = "/connections/{client_id}/status",
    operation_id = "v2.connection.status.multiorg",
    params(ClientInPath),
    responses((status = 200, description = "Connected or not.", body = Status)),
)]
pub(super) async fn status(
    State(shared): State<SharedState>,
    caller: Caller,
    client_id: Result<ClientIdPath, PathRejection>,
) -> Result<Json<Status>, ApiError> {
    let found = shared.reachable(&caller.org, &named(client_id)).await?;
    Ok(Json(match found {
        Some(connection) => Status::Connected(connection.into()),
        None => Status::Disconnected,
    }))
}
