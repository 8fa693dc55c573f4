//! `POST /v2/connections/status`: returns the connection status of many clients.

use std::collections::HashMap;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ConnectionView, invalid_request_error};
use crate::SharedState;
use crate::auth::OrgCaller;
use crate::error::ApiError;
use crate::json::{self, Json};
use crate::request_body::RequestBody;
use domain::ClientId;

/// Maximum number of client ids in one request.
const MAX_CLIENT_IDS: usize = 1000;

#[derive(Debug, Deserialize, ToSchema)]
struct BatchStatusRequest {
    /// Client ids, in any order. Duplicates are allowed.
    #[schema(
        value_type = Vec<String>,
        required = true,
        max_items = 1000,
        example = json!(["my-machine"])
    )]
    client_ids: Option<Vec<String>>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BatchStatusResponse {
    /// One entry per client id, in the order of the request.
    data: Vec<BatchStatusItem>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "status", rename_all = "lowercase")]
enum BatchStatusItem {
    Connected(ConnectionView),
    Disconnected { client_id: String },
}

/// Get the connection status of many clients
#[utoipa::path(
    post,
    path = "/connections/status",
    operation_id = "v2.connections.status",
    request_body = BatchStatusRequest,
    responses((
        status = 200,
        description = "One status per client id, in the order of the request.",
        body = BatchStatusResponse
    )),
)]
pub(super) async fn status(
    State(state): State<SharedState>,
    caller: OrgCaller,
    body: RequestBody,
) -> Result<Json<BatchStatusResponse>, ApiError> {
    let request: BatchStatusRequest = json::parse_body(&body)?;
    let requested_ids = request.client_ids.ok_or_else(json::missing_fields_error)?;
    if requested_ids.len() > MAX_CLIENT_IDS {
        return Err(invalid_request_error(format!(
            "client_ids has {} entries; at most {MAX_CLIENT_IDS} are allowed",
            requested_ids.len()
        )));
    }
    // The lookup uses only the valid ids. Invalid ids are reported as disconnected, because no
    // client can have an invalid id.
    let valid_ids: Vec<ClientId> = requested_ids
        .iter()
        .filter_map(|id| ClientId::new(id).ok())
        .collect();
    let connections = state
        .connections
        .find_connections_for_org(&caller.org_id, &valid_ids)
        .await?;
    let connections_by_id: HashMap<String, _> = connections
        .into_iter()
        .map(|connection| (connection.client_id.to_string(), connection))
        .collect();
    let data = requested_ids
        .into_iter()
        .map(|client_id| match connections_by_id.get(&client_id) {
            Some(connection) => BatchStatusItem::Connected(connection.clone().into()),
            None => BatchStatusItem::Disconnected { client_id },
        })
        .collect();
    Ok(Json(BatchStatusResponse { data }))
}
