//! Version 1 of the API, for existing callers.
//!
//! In v1, an account number identifies a tenant. Operators use the management endpoints, which may
//! access the connections of any tenant.

mod disconnect;
mod list_connections;
mod message;
mod ping;
mod reconnect;
mod status;

use std::time::Duration;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::auth::AccountCaller;
use super::error::ApiError;
use super::json;
use super::openapi::{Endpoint, EndpointGroup, document_group};
use super::{ApiState, SharedState};
use domain::Connection;
use protocol::Command;

pub(super) fn endpoints() -> Vec<Endpoint> {
    let mut endpoints = document_group(
        EndpointGroup::V1Tenant,
        [routes!(message::send), routes!(status::tenant_status)],
    );
    endpoints.extend(document_group(
        EndpointGroup::V1Management,
        [
            routes!(list_connections::list_all_connections),
            routes!(list_connections::list_account_connections),
            routes!(status::management_status),
            routes!(ping::ping),
            routes!(reconnect::reconnect),
            routes!(disconnect::disconnect),
        ],
    ));
    endpoints
}

/// Identifies a client by account and client id. v1 calls a client a node.
#[derive(Debug, Deserialize, ToSchema)]
struct NodeRef {
    /// Account number of the client.
    #[serde(default)]
    #[schema(required = true, min_length = 1, example = "111000")]
    account: String,
    /// Id of the client.
    #[serde(default)]
    #[schema(required = true, min_length = 1, example = "my-machine")]
    node_id: String,
}

impl NodeRef {
    /// Checks that `account` and `node_id` are present. An empty field counts as missing.
    fn validate(self) -> Result<Self, ApiError> {
        if self.account.is_empty() || self.node_id.is_empty() {
            return Err(json::missing_fields_error());
        }
        Ok(self)
    }

    /// Finds the connection of the client. Returns `None` if the account number is unknown or the
    /// client is not connected.
    async fn find_connection(&self, state: &ApiState) -> Result<Option<Connection>, ApiError> {
        match state.find_org_by_account(&self.account).await? {
            Some(org) => state.find_org_connection(&org, &self.node_id).await,
            None => Ok(None),
        }
    }

    /// Returns the error for a command to a client that is not connected.
    fn not_connected_error(&self) -> ApiError {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            format!(
                "No connection found for node ({}:{})",
                self.account, self.node_id
            ),
            "The account has no connected client with this node_id",
        )
    }
}

/// Sends a reconnect or disconnect command to a client.
async fn send_command(
    state: &SharedState,
    node: &NodeRef,
    command: &Command,
    ack_timeout: Duration,
) -> Result<(), ApiError> {
    let connection = node.find_connection(state).await?;
    let connection = connection.ok_or_else(|| node.not_connected_error())?;
    let sent = state.send_command(&connection, command, ack_timeout);
    let message_id = sent.await?;
    message_id
        .map(drop)
        .ok_or_else(|| node.not_connected_error())
}

/// Checks that the account in the request is the caller's own account.
fn check_account(caller: &AccountCaller, account: &str) -> Result<(), ApiError> {
    if caller.account == account {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::FORBIDDEN,
        "Account mismatch",
        "The account in the request body is not the account of the caller's credentials",
    ))
}

fn unknown_account_error(title: &'static str) -> ApiError {
    let detail = "No organization has this account number";
    ApiError::new(StatusCode::BAD_REQUEST, title, detail)
}

/// Connection status of a client. Fields that are null are omitted. Fields that are `{}` are not
/// omitted.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "status", rename_all = "lowercase")]
enum NodeStatus {
    Connected {
        #[serde(skip_serializing_if = "Value::is_null")]
        #[schema(value_type = Object)]
        dispatchers: Value,
        #[serde(skip_serializing_if = "Value::is_null")]
        #[schema(value_type = Object)]
        canonical_facts: Value,
        #[serde(skip_serializing_if = "Value::is_null")]
        #[schema(value_type = Object)]
        tags: Value,
    },
    Disconnected,
}

impl From<Option<Connection>> for NodeStatus {
    fn from(connection: Option<Connection>) -> Self {
        match connection {
            Some(connection) => Self::Connected {
                dispatchers: connection.info.dispatchers,
                canonical_facts: connection.info.canonical_facts,
                tags: connection.info.tags,
            },
            None => Self::Disconnected,
        }
    }
}
