//! `GET /v2/connections/{client_id}/status`: connected or not.

use axum::extract::rejection::PathRejection;
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
    client_id: Result<Path<String>, PathRejection>,
) -> Result<Json<Status>, ApiError> {
    // A name that no client can have is nobody's connection.
    let client = client_id
        .ok()
        .and_then(|Path(name)| ClientId::new(&name).ok());
    let connection = match client {
        Some(client) => shared.store.find_for_org(&caller.org, &client).await?,
        None => None,
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
