//! `POST /v2/connections/{client_id}/message`: a message to one client.

use axum::extract::State;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::response::IntoResponse;
use bytes::Bytes;

use super::{Named, named};
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::sending::{self, Message};
use crate::api::{Shared, json};

pub(super) async fn send(
    State(shared): State<Shared>,
    caller: Caller,
    client_id: Result<Named, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<impl IntoResponse, ApiError> {
    let request = json::read::<Message>(body)?.checked()?;
    let found = shared.reachable(&caller.org, &named(client_id)).await?;
    sending::send(&shared, found, request).await
}
