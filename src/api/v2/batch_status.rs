//! `POST /v2/connections/status`: the status of many clients at once, one answer for each, in order.

use std::collections::HashMap;

use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::ConnectionView;
use crate::api::Shared;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::json::{self, Json};
use crate::domain::ClientId;

/// Most clients in one request.
const CLIENTS_MOST: usize = 1000;

#[derive(Debug, Deserialize)]
struct Asked {
    client_ids: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
pub(super) struct Answers {
    data: Vec<Answer>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Answer {
    Connected {
        status: &'static str,
        #[serde(flatten)]
        connection: ConnectionView,
    },
    Disconnected {
        status: &'static str,
        client_id: String,
    },
}

pub(super) async fn status(
    State(shared): State<Shared>,
    caller: Caller,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Answers>, ApiError> {
    let asked: Asked = json::read(body)?;
    let names = asked.client_ids.ok_or_else(json::missing_fields)?;
    if names.len() > CLIENTS_MOST {
        return Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            "Invalid request",
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
            Some(connection) => Answer::Connected {
                status: "connected",
                connection: connection.clone().into(),
            },
            None => Answer::Disconnected {
                status: "disconnected",
                client_id: name,
            },
        })
        .collect();
    Ok(Json(Answers { data }))
}
