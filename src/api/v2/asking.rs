//! `POST /v2/connections/{client_id}/ping` and `…/check`: whether a client answers.

use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{OriginalUri, State};
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::{ClientIdPath, ClientInPath, named};
use crate::api::audit::{Action, audited};
use crate::api::auth::Caller;
use crate::api::connection_status::Presence;
use crate::api::error::ApiError;
use crate::api::json::Json;
use crate::api::{ApiState, SharedState, pagination};
use crate::delivery::{ClientRequest, ReceivedResponse, Request, RequestOutcome, SendError};
use crate::domain::Connection;

/// How long an answer is waited for, in seconds, where the caller does not say.
const TIMEOUT_DEFAULT: u64 = 5;
/// Below the time that any request may take.
const TIMEOUT_MOST: u64 = 25;

/// A client answered a ping.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Pong)]
pub(super) struct PingResponse {
    status: Presence,
    /// The ping's.
    id: Uuid,
    /// From the ping to the pong, in milliseconds.
    round_trip_ms: f64,
}

/// How a connection stands, as far as the level goes.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct CheckResponse {
    level: u8,
    status: Presence,
    /// Whether the client answered; on level 1 nobody asks it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    answered: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    round_trip_ms: Option<f64>,
    /// What the client says if it could not handle the question.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    refusal: Option<String>,
}

/// What the document says of the time that an answer is waited for.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes; it is read as text")]
struct TimeoutParam {
    /// Seconds to wait for the client's answer.
    #[param(minimum = 1, maximum = 25, default = 5)]
    timeout: Option<u8>,
}

/// What the document says of a check.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes; it is read as text")]
struct CheckParams {
    /// 1: what is recorded. 2: the client is pinged. 3: one of its applications is asked.
    #[param(minimum = 1, maximum = 3, default = 1)]
    level: Option<u8>,
    /// Level 3 needs it: what the application answers to.
    directive: Option<String>,
}

/// Ping a client
///
/// Waits for the client's answer.
#[utoipa::path(
    post,
    path = "/connections/{client_id}/ping",
    operation_id = "v2.connection.ping",
    params(ClientInPath, TimeoutParam),
    responses(
        (status = 200, description = "The client answered.", body = PingResponse),
        (status = 404, description = "The organisation has no connection to that client.", body = ApiError),
        (status = 409, description = "The client's dialect has no ping.", body = ApiError),
        (status = 504, description = "No answer in time.", body = ApiError),
    ),
)]
pub(super) async fn ping(
    State(shared): State<SharedState>,
    caller: Caller,
    client_id: Result<ClientIdPath, PathRejection>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<PingResponse>, ApiError> {
    let client = named(client_id);
    let within = timeout(&pagination::query(&uri))?;
    let action = Action {
        who: &caller.name,
        name: "ping",
        tenant: caller.org.as_str(),
        client: &client,
    };
    let pinged = async {
        let found = shared.own(&caller.org, &client).await?;
        let connection = found.ok_or_else(ApiError::no_connection)?;
        let reply = ask(
            &shared,
            &connection,
            ClientRequest::Ping,
            within,
            "Ping failed",
        )
        .await?;
        let answer = reply.answer.ok_or_else(|| {
            ApiError::no_answer(
                "Ping failed",
                reply.id,
                "The client did not answer in time; a longer timeout, or asking again, may help",
            )
        })?;
        Ok(PingResponse {
            status: Presence::Connected,
            id: reply.id,
            round_trip_ms: milliseconds(&answer),
        })
    };
    audited(&action, pinged).await.map(Json)
}

/// Check how a connection stands
#[utoipa::path(
    post,
    path = "/connections/{client_id}/check",
    operation_id = "v2.connection.check",
    params(ClientInPath, CheckParams, TimeoutParam),
    responses(
        (status = 200, description = "How it stands, whether the client answered or not.", body = CheckResponse),
        (status = 404, description = "The client left meanwhile.", body = ApiError),
        (status = 409, description = "The client's dialect has no ping.", body = ApiError),
        (status = 504, description = "The broker does not confirm the question.", body = ApiError),
    ),
)]
pub(super) async fn check(
    State(shared): State<SharedState>,
    caller: Caller,
    client_id: Result<ClientIdPath, PathRejection>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<CheckResponse>, ApiError> {
    let client = named(client_id);
    let query = pagination::query(&uri);
    let within = timeout(&query)?;
    let (level, question) = level(&query)?;
    let action = Action {
        who: &caller.name,
        name: "check",
        tenant: caller.org.as_str(),
        client: &client,
    };
    let checked = async {
        let Some(connection) = shared.own(&caller.org, &client).await? else {
            return Ok(CheckResponse {
                level,
                status: Presence::Disconnected,
                ..CheckResponse::default()
            });
        };
        let mut checked = CheckResponse {
            level,
            status: Presence::Connected,
            ..CheckResponse::default()
        };
        if let Some(question) = question {
            let reply = ask(&shared, &connection, question, within, "Check failed").await?;
            checked.answered = Some(reply.answer.is_some());
            checked.id = Some(reply.id);
            checked.round_trip_ms = reply.answer.as_ref().map(milliseconds);
            checked.refusal = reply.answer.and_then(|answer| answer.refusal);
        }
        Ok(checked)
    };
    audited(&action, checked).await.map(Json)
}

async fn ask(
    parts: &ApiState,
    connection: &Connection,
    question: ClientRequest,
    within: Duration,
    failed: &'static str,
) -> Result<RequestOutcome, ApiError> {
    match parts.delivery.ask(connection, question, within).await {
        Ok(Some(reply)) => Ok(reply),
        Ok(None) => Err(ApiError::new(
            StatusCode::CONFLICT,
            failed,
            "The client speaks a dialect that has no ping; \
             ask its application with check?level=3&directive=…",
        )),
        Err(SendError::NotConnected) => Err(ApiError::no_connection()),
        Err(error) => Err(ApiError::not_sent(failed, error)),
    }
}

fn milliseconds(answer: &ReceivedResponse) -> f64 {
    (answer.after.as_secs_f64() * 1e6).round() / 1e3
}

/// The level, and what the client is asked on it.
fn level(query: &[(String, String)]) -> Result<(u8, Option<ClientRequest>), ApiError> {
    match pagination::last(query, "level") {
        None | Some("" | "1") => Ok((1, None)),
        Some("2") => Ok((2, Some(ClientRequest::Ping))),
        Some("3") => {
            let directive = pagination::last(query, "directive").unwrap_or_default();
            if directive.trim().is_empty() {
                return Err(invalid(
                    "level 3 asks the client's application: name a directive that it answers, \
                     with directive=…",
                ));
            }
            let request = Request {
                directive: directive.to_owned(),
                metadata: Value::Null,
                payload: Value::Null,
            };
            Ok((3, Some(ClientRequest::Message(request))))
        }
        Some(_) => Err(invalid("level must be 1, 2 or 3")),
    }
}

fn timeout(query: &[(String, String)]) -> Result<Duration, ApiError> {
    let seconds = match pagination::last(query, "timeout") {
        None | Some("") => Some(TIMEOUT_DEFAULT),
        Some(text) => text.parse().ok(),
    };
    let seconds = seconds.filter(|seconds| (1..=TIMEOUT_MOST).contains(seconds));
    let seconds = seconds.ok_or_else(|| invalid("timeout must be 1 to 25 seconds"))?;
    Ok(Duration::from_secs(seconds))
}

fn invalid(detail: &str) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "InvalidValue request", detail)
}
