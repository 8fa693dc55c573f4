//! Version 2 of the API. In v2, an organization id identifies a tenant. Operators use the management
//! endpoints, which may access the clients of any tenant, and clients without a tenant.

mod batch_status;
mod check;
mod client_request;
mod connection_details;
mod diagnosis;
mod disconnect;
pub(crate) mod events;
mod history;
mod list_connections;
mod list_filters;
mod message;
mod messages;
mod ping;
mod reconnect;
mod search_clients;
mod status;

use std::time::Duration;

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;
use uuid::Uuid;

use super::SharedState;
use super::audit::{AuditedAction, run_audited};
use super::auth::OrgCaller;
use super::error::ApiError;
use super::json::Json;
use super::openapi::{Endpoint, EndpointGroup, document_group};
use domain::Connection;
use protocol::Command;

const INVALID_REQUEST_TITLE: &str = "Invalid request";

pub(super) fn endpoints() -> Vec<Endpoint> {
    let mut endpoints = document_group(
        EndpointGroup::V2Tenant,
        [
            routes!(list_connections::list_connections),
            routes!(connection_details::details),
            routes!(history::history),
            routes!(events::stream_events),
            routes!(batch_status::status),
            routes!(status::status),
            routes!(message::send),
            routes!(messages::list::list),
            routes!(messages::find::find, messages::cancel::cancel),
            routes!(ping::ping),
            routes!(check::check_connection),
            routes!(reconnect::reconnect),
            routes!(disconnect::disconnect),
        ],
    );
    endpoints.extend(document_group(
        EndpointGroup::V2Management,
        [
            routes!(search_clients::search_clients),
            routes!(diagnosis::diagnosis),
        ],
    ));
    endpoints
}

/// OpenAPI description of the path parameter `client_id`.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only documents the parameter")]
struct ClientIdParam {
    /// Client id: the common name of the client's certificate.
    #[param(min_length = 1, example = "my-machine")]
    client_id: String,
}

/// Extractor of the path parameter `client_id`.
type ClientIdPath = Path<String>;

/// Returns the client id from the path. If the path is not valid UTF-8, returns `""`. No client has
/// this id.
fn client_id_from_path(path: Result<ClientIdPath, PathRejection>) -> String {
    path.map(|Path(client_id)| client_id).unwrap_or_default()
}

fn invalid_request_error(detail: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, INVALID_REQUEST_TITLE, detail)
}

/// Rejects a request with query parameters that the endpoint does not have.
fn reject_unknown_params(
    params: &[(String, String)],
    known_names: &[&str],
) -> Result<(), ApiError> {
    let names = params.iter().map(|(name, _)| name.as_str());
    let mut unknown_names: Vec<&str> = names.filter(|name| !known_names.contains(name)).collect();
    unknown_names.sort_unstable();
    unknown_names.dedup();
    if unknown_names.is_empty() {
        return Ok(());
    }
    Err(invalid_request_error(format!(
        "unknown query parameter: {}; the endpoint has only: {}",
        unknown_names.join(", "),
        known_names.join(", ")
    )))
}

/// Response to a command that the broker acknowledged.
#[derive(Debug, Serialize, ToSchema)]
struct CommandAccepted {
    /// Message id of the command.
    id: Uuid,
}

/// Sends a reconnect or disconnect command to a client, and writes an audit line.
async fn send_command(
    state: &SharedState,
    caller: &OrgCaller,
    action_name: &'static str,
    client_id: &str,
    command: &Command,
    ack_timeout: Duration,
) -> Result<Json<CommandAccepted>, ApiError> {
    let action = AuditedAction {
        caller: &caller.audit_name,
        action: action_name,
        tenant: caller.org_id.as_str(),
        client_id,
    };
    let send = async {
        let connection = state.find_org_connection(&caller.org_id, client_id).await?;
        let connection = connection.ok_or_else(ApiError::no_connection)?;
        let sent = state.send_command(&connection, command, ack_timeout);
        let message_id = sent.await?;
        let id = message_id.ok_or_else(ApiError::no_connection)?;
        Ok(CommandAccepted { id })
    };
    run_audited(&action, send).await.map(Json)
}

/// A connected client. Fields that are null or `""` are omitted. Fields that are `{}` are not
/// omitted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Connection)]
struct ConnectionView {
    /// Account number of the organization, if the organization has an account number.
    #[serde(skip_serializing_if = "String::is_empty")]
    account: String,
    /// Organization that the client belongs to.
    org_id: String,
    client_id: String,
    /// Facts that identify the machine.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Object)]
    canonical_facts: Value,
    /// Applications on the client that accept messages, by name.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Object)]
    dispatchers: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Object)]
    tags: Value,
    /// Start of the connection.
    #[schema(format = DateTime)]
    connected_since: String,
    /// Time of the latest message of the client. It can be some minutes too early.
    #[schema(format = DateTime)]
    last_seen: String,
    /// Version of the client program.
    #[serde(skip_serializing_if = "String::is_empty")]
    client_version: String,
}

impl From<Connection> for ConnectionView {
    fn from(connection: Connection) -> Self {
        Self {
            account: connection.tenant.account,
            org_id: connection.tenant.org_id.to_string(),
            client_id: connection.client_id.to_string(),
            canonical_facts: connection.info.canonical_facts,
            dispatchers: connection.info.dispatchers,
            tags: connection.info.tags,
            connected_since: connection.connected_since.to_string(),
            last_seen: connection.last_seen.to_string(),
            client_version: connection.info.client_version,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_every_unknown_query_parameter_once() {
        let check = |names: &[&str]| {
            let params: Vec<_> = names
                .iter()
                .map(|name| ((*name).to_owned(), String::new()))
                .collect();
            reject_unknown_params(&params, &["cursor", "limit"])
        };
        assert!(check(&[]).is_ok());
        assert!(check(&["limit", "cursor", "limit"]).is_ok());
        let error = check(&["x", "limit", "offset", "x"]).unwrap_err();
        let error = serde_json::to_value(&error).unwrap();
        let detail = "unknown query parameter: offset, x; the endpoint has only: cursor, limit";
        assert_eq!(error["detail"], detail);
        assert_eq!(error["status"], 400);
    }
}
