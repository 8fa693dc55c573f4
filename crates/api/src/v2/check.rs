//! `POST /v2/connections/{client_id}/check`: checks a connection at one of three levels.

use axum::extract::rejection::PathRejection;
use axum::extract::{OriginalUri, State};
use serde::Serialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::client_request::{TimeoutParam, parse_timeout, round_trip_ms, send_request};
use super::{ClientIdParam, ClientIdPath, client_id_from_path, invalid_request_error};
use crate::SharedState;
use crate::audit::{AuditedAction, run_audited};
use crate::auth::OrgCaller;
use crate::connection_status::ConnectionStatus;
use crate::error::ApiError;
use crate::json::Json;
use crate::pagination::{last_param_value, query_params};
use delivery::{ClientRequest, MessageContent};

/// Result of checking a connection.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct CheckResponse {
    level: u8,
    /// Connection status in the database.
    status: ConnectionStatus,
    /// Whether the client responded. Absent if no request was sent to the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    answered: Option<bool>,
    /// Message id of the request to the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    id: Option<Uuid>,
    /// Time from the request to the client's response, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    round_trip_ms: Option<f64>,
    /// Error message of the client, if the client could not process the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    client_error: Option<String>,
}

/// OpenAPI description of the query parameters `level` and `directive`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only documents the parameters")]
struct CheckParams {
    /// Level 1 looks up the status in the database. Level 2 looks up the status and pings the
    /// client. Level 3 looks up the status and sends a message to an application on the client.
    #[param(minimum = 1, maximum = 3, default = 1)]
    level: Option<u8>,
    /// Directive of the level 3 message. Required for level 3. An application on the client must
    /// respond to this directive.
    directive: Option<String>,
}

/// Check a connection
///
/// Looks up the status in the database. Levels 2 and 3 also send a request to the client and wait
/// for the client's response.
#[utoipa::path(
    post,
    path = "/connections/{client_id}/check",
    operation_id = "v2.connection.check",
    params(ClientIdParam, CheckParams, TimeoutParam),
    responses(
        (
            status = 200,
            description = "Result of the check, also if the client did not respond.",
            body = CheckResponse
        ),
        (status = 404, description = "The client disconnected during the check.", body = ApiError),
        (status = 409, description = "The client's protocol dialect has no ping.", body = ApiError),
        (
            status = 504,
            description = "The broker did not acknowledge the request to the client.",
            body = ApiError
        ),
    ),
)]
pub(super) async fn check_connection(
    State(state): State<SharedState>,
    caller: OrgCaller,
    path: Result<ClientIdPath, PathRejection>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<CheckResponse>, ApiError> {
    let client_id = client_id_from_path(path);
    let params = query_params(&uri);
    let timeout = parse_timeout(&params)?;
    let (level, request) = parse_level(&params)?;
    let action = AuditedAction {
        caller: &caller.audit_name,
        action: "check",
        tenant: caller.org_id.as_str(),
        client_id: &client_id,
    };
    let run_check = async {
        let Some(connection) = state
            .find_org_connection(&caller.org_id, &client_id)
            .await?
        else {
            return Ok(CheckResponse {
                level,
                status: ConnectionStatus::Disconnected,
                ..CheckResponse::default()
            });
        };
        let mut result = CheckResponse {
            level,
            status: ConnectionStatus::Connected,
            ..CheckResponse::default()
        };
        if let Some(request) = request {
            let ack_timeout = state.ack_timeout;
            let title = "Check failed";
            let outcome =
                send_request(&state, &connection, request, ack_timeout, timeout, title).await?;
            result.answered = Some(outcome.response.is_some());
            result.id = Some(outcome.request_id);
            result.round_trip_ms = outcome.response.as_ref().map(round_trip_ms);
            result.client_error = outcome.response.and_then(|response| response.client_error);
        }
        Ok(result)
    };
    run_audited(&action, run_check).await.map(Json)
}

/// Parses the query parameter `level`. Returns the level and the request to send to the client. For
/// level 1, there is no request.
fn parse_level(params: &[(String, String)]) -> Result<(u8, Option<ClientRequest>), ApiError> {
    match last_param_value(params, "level") {
        None | Some("" | "1") => Ok((1, None)),
        Some("2") => Ok((2, Some(ClientRequest::Ping))),
        Some("3") => {
            let directive = last_param_value(params, "directive").unwrap_or_default();
            if directive.trim().is_empty() {
                return Err(invalid_request_error(
                    "level 3 requires directive=…, naming a directive that an application on the \
                     client responds to",
                ));
            }
            let message = MessageContent {
                directive: directive.to_owned(),
                metadata: Value::Null,
                payload: Value::Null,
            };
            Ok((3, Some(ClientRequest::Message(message))))
        }
        Some(_) => Err(invalid_request_error("level must be 1, 2 or 3")),
    }
}
