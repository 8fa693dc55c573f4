//! `GET /v2/connections/{client_id}/status`: connected or not.

use axum::extract::State;
use axum::extract::rejection::PathRejection;
use serde::Serialize;

use super::{ConnectionView, Named, named};
use crate::api::Shared;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::json::Json;

#[derive(Debug, Serialize)]
pub(super) struct Status {
    status: &'static str,
    #[serde(flatten)]
    connection: Option<ConnectionView>,
}

pub(super) async fn status(
    State(shared): State<Shared>,
    caller: Caller,
    client_id: Result<Named, PathRejection>,
) -> Result<Json<Status>, ApiError> {
    let connection = shared.reachable(&caller.org, &named(client_id)).await?;
    Ok(Json(Status {
        status: if connection.is_some() {
            "connected"
        } else {
            "disconnected"
        },
        connection: connection.map(Into::into),
    }))
}
