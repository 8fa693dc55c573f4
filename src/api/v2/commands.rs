//! `POST /v2/connections/{client_id}/reconnect` and `…/disconnect`: tells a client to leave, and to come
//! back or to stay away.

use axum::extract::State;
use axum::extract::rejection::{BytesRejection, PathRejection};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{ClientIdPath, ClientInPath, named};
use crate::api::audit::{Action, audited};
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::json::{self, Json};
use crate::api::{SharedState, send_command};
use crate::protocol::Command;

/// How long the client stays away, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ReconnectRequest)]
struct Reconnect {
    /// Seconds that the client stays away.
    #[schema(value_type = i64, required = true, minimum = 0, maximum = 9_223_372_036_854_775_807_i64, example = 5)]
    #[serde(default, deserialize_with = "send_command::whole")]
    delay: Option<i64>,
    /// Why, for the client's log.
    #[serde(default)]
    message: Option<String>,
}

/// Why the client is to leave.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = DisconnectRequest)]
struct Disconnect {
    /// Why, for the client's log.
    #[serde(default)]
    message: Option<String>,
}

/// The broker has the command.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CommandAccepted {
    /// The command's.
    id: Uuid,
}

/// Tell a client to leave and come back
///
/// PendingResponses when the broker has the order.
#[utoipa::path(
    post,
    path = "/connections/{client_id}/reconnect",
    operation_id = "v2.connection.reconnect",
    params(ClientInPath),
    request_body = Reconnect,
    responses(
        (status = 200, description = "The broker has the order.", body = CommandAccepted),
        (status = 404, description = "The organisation has no connection to that client.", body = ApiError),
        (status = 504, description = "The broker does not confirm it: the order may still arrive.", body = ApiError),
    ),
)]
pub(super) async fn reconnect(
    State(shared): State<SharedState>,
    caller: Caller,
    client_id: Result<ClientIdPath, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<CommandAccepted>, ApiError> {
    let Reconnect { delay, message } = json::read(body)?;
    let delay_seconds = send_command::delay(delay.ok_or_else(json::missing_fields)?)?;
    let order = Command::Reconnect {
        delay_seconds,
        message: message.unwrap_or_default(),
    };
    tell(&shared, &caller, "reconnect", named(client_id), order).await
}

/// Tell a client to leave and stay away
///
/// PendingResponses when the broker has the order. A body is not needed.
#[utoipa::path(
    post,
    path = "/connections/{client_id}/disconnect",
    operation_id = "v2.connection.disconnect",
    params(ClientInPath),
    request_body = Option<Disconnect>,
    responses(
        (status = 200, description = "The broker has the order.", body = CommandAccepted),
        (status = 404, description = "The organisation has no connection to that client.", body = ApiError),
        (status = 504, description = "The broker does not confirm it: the order may still arrive.", body = ApiError),
    ),
)]
pub(super) async fn disconnect(
    State(shared): State<SharedState>,
    caller: Caller,
    client_id: Result<ClientIdPath, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<CommandAccepted>, ApiError> {
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
    shared: &SharedState,
    caller: &Caller,
    name: &'static str,
    client: String,
    order: Command,
) -> Result<Json<CommandAccepted>, ApiError> {
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
        Ok(CommandAccepted { id })
    };
    audited(&action, told).await.map(Json)
}
