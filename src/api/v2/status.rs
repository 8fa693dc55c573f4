//! `GET /v2/connections/{client_id}/status`: connected or not.

use axum::extract::{Path, State};
use serde::Serialize;

use super::ConnectionView;
use crate::api::Shared;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::json::Json;
use crate::domain::ClientId;

#[derive(Debug, Serialize)]
pub(super) struct Status {
    status: &'static str,
    #[serde(flatten)]
    connection: Option<ConnectionView>,
}

pub(super) async fn status(
    State(shared): State<Shared>,
    caller: Caller,
    Path(client_id): Path<String>,
) -> Result<Json<Status>, ApiError> {
    // A name that no client can have is nobody's connection.
    let connection = match ClientId::new(&client_id) {
        Ok(client) => shared.store.find_for_org(&caller.org, &client).await?,
        Err(_) => None,
    };
    Ok(Json(Status {
        status: if connection.is_some() {
            "connected"
        } else {
            "disconnected"
        },
        connection: connection.map(Into::into),
    }))
}
