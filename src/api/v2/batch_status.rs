//! `POST /v2/connections/status`: the status of many clients at once, one answer for each, in order.

use std::collections::HashMap;

use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ConnectionView;
use crate::api::SharedState;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::json::{self, Json};
use crate::domain::ClientId;

/// Most clients in one request.
const CLIENTS_MOST: usize = 1000;

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = StatusBatch)]
struct BatchStatusRequest {
    /// Clients to ask about, in any order, more than once if you like.
    #[schema(value_type = Vec<String>, required = true, max_items = 1000, example = json!(["my-machine"]))]
    client_ids: Option<Vec<String>>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StatusBatchAnswer)]
pub(super) struct BatchStatusResponse {
    /// One for each that was asked about, in the same order.
    data: Vec<BatchStatusItem>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "status", rename_all = "lowercase")]
#[schema(as = StatusOfOne)]
enum BatchStatusItem {
    Connected(ConnectionView),
    Disconnected { client_id: String },
}

/// Ask about many clients at once
#[utoipa::path(
    post,
    path = "/connections/status",
    operation_id = "v2.connections.status",
    request_body = BatchStatusRequest,
    responses((status = 200, description = "One answer for each, in order.", body = BatchStatusResponse)),
)]
pub(super) async fn status(
    State(shared): State<SharedState>,
    caller: Caller,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<BatchStatusResponse>, ApiError> {
    let asked: BatchStatusRequest = json::read(body)?;
    let names = asked.client_ids.ok_or_else(json::missing_fields)?;
    if names.len() > CLIENTS_MOST {
        return Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            "InvalidValue request",
            format!(
                "client_ids may name {CLIENTS_MOST} clients, not {}",
                names.len()
            ),
        ));
    }
    // A name that no client can have is nobody's.
    let clients: Vec<ClientId> = names
        .iter()
        .filter_map(|name| ClientId::new(name).ok())
        .collect();
    let found = shared
        .store
        .find_many_for_org(&caller.org, &clients)
        .await?;
    let found: HashMap<String, _> = found
        .into_iter()
        .map(|connection| (connection.client_id.to_string(), connection))
        .collect();
    let data = names
        .into_iter()
        .map(|name| match found.get(&name) {
            Some(connection) => BatchStatusItem::Connected(connection.clone().into()),
            None => BatchStatusItem::Disconnected { client_id: name },
        })
        .collect();
    Ok(Json(BatchStatusResponse { data }))
}
