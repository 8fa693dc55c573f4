//! `GET /v2/connections/{client_id}/status`: returns the connection status of a client.

use axum::extract::State;
use axum::extract::rejection::PathRejection;
use serde::Serialize;
use utoipa::ToSchema;

use super::{ClientIdParam, ClientIdPath, ConnectionView, client_id_from_path};
use crate::SharedState;
use crate::auth::OrgCaller;
use crate::error::ApiError;
use crate::json::Json;

#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "status", rename_all = "lowercase")]
pub(super) enum StatusResponse {
    Connected(Box<ConnectionView>),
    Disconnected,
}

/// Get the connection status of a client
#[utoipa::path(
    get,
    path = "/connections/{client_id}/status",
    operation_id = "v2.connection.status.multiorg",
    params(ClientIdParam),
    responses((status = 200, description = "Status of the client.", body = StatusResponse)),
)]
pub(super) async fn status(
    State(state): State<SharedState>,
    caller: OrgCaller,
    path: Result<ClientIdPath, PathRejection>,
) -> Result<Json<StatusResponse>, ApiError> {
    let client_id = client_id_from_path(path);
    let connection = state
        .find_reachable_connection(&caller.org_id, &client_id)
        .await?;
    Ok(Json(match connection {
        Some(connection) => StatusResponse::Connected(Box::new(connection.into())),
        None => StatusResponse::Disconnected,
    }))
}
