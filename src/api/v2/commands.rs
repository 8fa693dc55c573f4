//! `POST /v2/connections/{client_id}/reconnect` and `…/disconnect`: tells a client to leave, and to come
//! back or to stay away.

use axum::extract::State;
use axum::extract::rejection::{BytesRejection, PathRejection};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Named, named};
use crate::api::audit::{Action, audited};
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::json::{self, Json};
use crate::api::{Shared, commands};
use crate::protocol::Command;

/// How long the client stays away, and why.
#[derive(Debug, Deserialize)]
struct Reconnect {
    delay: Option<i64>,
    #[serde(default)]
    message: Option<String>,
}

/// Why the client is to leave.
#[derive(Debug, Default, Deserialize)]
struct Disconnect {
    #[serde(default)]
    message: Option<String>,
}

/// The broker has the command.
#[derive(Debug, Serialize)]
pub(super) struct Told {
    /// The command's.
    id: Uuid,
}

pub(super) async fn reconnect(
    State(shared): State<Shared>,
    caller: Caller,
    client_id: Result<Named, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Told>, ApiError> {
    let Reconnect { delay, message } = json::read(body)?;
    let delay_seconds = commands::delay(delay.ok_or_else(json::missing_fields)?)?;
    let order = Command::Reconnect {
        delay_seconds,
        message: message.unwrap_or_default(),
    };
    tell(&shared, &caller, "reconnect", named(client_id), order).await
}

/// A body is not needed.
pub(super) async fn disconnect(
    State(shared): State<Shared>,
    caller: Caller,
    client_id: Result<Named, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Told>, ApiError> {
    let Disconnect { message } = match &body {
        Ok(bytes) if bytes.is_empty() => Disconnect::default(),
        _ => json::read(body)?,
    };
    let order = Command::Disconnect {
        message: message.unwrap_or_default(),
    };
    tell(&shared, &caller, "disconnect", named(client_id), order).await
}

async fn tell(
    shared: &Shared,
    caller: &Caller,
    name: &'static str,
    client: String,
    order: Command,
) -> Result<Json<Told>, ApiError> {
    let action = Action {
        who: &caller.name,
        name,
        tenant: caller.org.as_str(),
        client: &client,
    };
    let told = async {
        let found = shared.own(&caller.org, &client).await?;
        let connection = found.ok_or_else(ApiError::no_connection)?;
        let sent = shared.command(&connection, &order).await?;
        let id = sent.ok_or_else(ApiError::no_connection)?;
        Ok(Told { id })
    };
    audited(&action, told.await).map(Json)
}
