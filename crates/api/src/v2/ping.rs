//! `POST /v2/connections/{client_id}/ping`: pings a client and waits for the response.

use axum::extract::rejection::PathRejection;
use axum::extract::{OriginalUri, State};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::client_request::{TimeoutParam, parse_timeout, round_trip_ms, send_request};
use super::{ClientIdParam, ClientIdPath, client_id_from_path};
use crate::SharedState;
use crate::audit::{AuditedAction, run_audited};
use crate::auth::OrgCaller;
use crate::connection_status::ConnectionStatus;
use crate::error::ApiError;
use crate::json::Json;
use crate::pagination::query_params;
use delivery::ClientRequest;

const PING_FAILED_TITLE: &str = "Ping failed";

/// Result of a ping that the client responded to.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PingResponse {
    status: ConnectionStatus,
    /// Message id of the ping.
    id: Uuid,
    /// Time from the ping to the client's response, in milliseconds.
    round_trip_ms: f64,
}

/// Ping a client
///
/// Waits for the client's response.
#[utoipa::path(
    post,
    path = "/connections/{client_id}/ping",
    operation_id = "v2.connection.ping",
    params(ClientIdParam, TimeoutParam),
    responses(
        (status = 200, description = "The client responded.", body = PingResponse),
        (
            status = 404,
            description = "The organization has no such connected client.",
            body = ApiError
        ),
        (status = 409, description = "The client's protocol dialect has no ping.", body = ApiError),
        (status = 504, description = "The client did not respond in time.", body = ApiError),
    ),
)]
pub(super) async fn ping(
    State(state): State<SharedState>,
    caller: OrgCaller,
    path: Result<ClientIdPath, PathRejection>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<PingResponse>, ApiError> {
    let client_id = client_id_from_path(path);
    let timeout = parse_timeout(&query_params(&uri))?;
    let action = AuditedAction {
        caller: &caller.audit_name,
        action: "ping",
        tenant: caller.org_id.as_str(),
        client_id: &client_id,
    };
    let ping = async {
        let connection = state
            .find_org_connection(&caller.org_id, &client_id)
            .await?;
        let connection = connection.ok_or_else(ApiError::no_connection)?;
        let ping = ClientRequest::Ping;
        let ack_timeout = state.ack_timeout;
        let title = PING_FAILED_TITLE;
        let outcome = send_request(&state, &connection, ping, ack_timeout, timeout, title).await?;
        let response = outcome.response.ok_or_else(|| {
            ApiError::no_response(
                PING_FAILED_TITLE,
                outcome.request_id,
                "The client did not respond in time; retry, or use a longer timeout",
            )
        })?;
        Ok(PingResponse {
            status: ConnectionStatus::Connected,
            id: outcome.request_id,
            round_trip_ms: round_trip_ms(&response),
        })
    };
    run_audited(&action, ping).await.map(Json)
}
