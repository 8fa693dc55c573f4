//! The first generation, kept for callers that know it: tenants are account numbers, and what is
//! done to any tenant's connection has endpoints of its own.

mod disconnect;
mod list;
mod message;
mod ping;
mod reconnect;
mod status;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::auth::AccountCaller;
use super::error::ApiError;
use super::json;
use super::{Parts, Shared};
use crate::domain::Connection;
use crate::protocol::Command;

pub(super) fn router() -> Router<Shared> {
    Router::new()
        .route("/message", post(message::send))
        .route("/connection_status", post(status::for_tenant))
        .route("/connection", get(list::all))
        .route("/connection/status", post(status::for_management))
        .route("/connection/ping", post(ping::ping))
        .route("/connection/reconnect", post(reconnect::reconnect))
        .route("/connection/disconnect", post(disconnect::disconnect))
        .route("/connection/{account}", get(list::of_account))
}

/// Names a connection by account and client.
#[derive(Debug, Deserialize)]
struct Node {
    #[serde(default)]
    account: String,
    #[serde(default)]
    node_id: String,
}

impl Node {
    /// An empty field is a missing one.
    fn checked(self) -> Result<Self, ApiError> {
        if self.account.is_empty() || self.node_id.is_empty() {
            return Err(json::missing_fields());
        }
        Ok(self)
    }

    /// The connection; none if the account or the connection is unknown.
    async fn find(&self, parts: &Parts) -> Result<Option<Connection>, ApiError> {
        match parts.org_of(&self.account).await? {
            Some(org) => parts.own(&org, &self.node_id).await,
            None => Ok(None),
        }
    }

    /// Commands name what they do not find.
    fn not_found(&self) -> ApiError {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            format!(
                "No connection found for node ({}:{})",
                self.account, self.node_id
            ),
            "The account has no connection to that node",
        )
    }
}

/// Sends a command that both dialects have.
async fn command(parts: &Parts, node: &Node, command: &Command) -> Result<(), ApiError> {
    let found = node.find(parts).await?;
    let connection = found.ok_or_else(|| node.not_found())?;
    let sent = parts.command(&connection, command).await?;
    sent.map(drop).ok_or_else(|| node.not_found())
}

/// Whether the caller speaks for the account that it names.
fn same_account(caller: &AccountCaller, account: &str) -> Result<(), ApiError> {
    if caller.account == account {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::FORBIDDEN,
        "Account mismatch",
        "The account in the request is not the caller's",
    ))
}

fn unknown_account(title: &'static str) -> ApiError {
    let detail = "There is no organisation with that account number";
    ApiError::new(StatusCode::BAD_REQUEST, title, detail)
}

/// A connection as this generation shows it. Nulls are left out, `{}` is kept.
#[derive(Debug, Serialize)]
struct StatusView {
    status: &'static str,
    #[serde(skip_serializing_if = "Value::is_null")]
    dispatchers: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    canonical_facts: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    tags: Value,
}

impl From<Option<Connection>> for StatusView {
    fn from(found: Option<Connection>) -> Self {
        match found {
            Some(connection) => Self {
                status: "connected",
                dispatchers: connection.reported.dispatchers,
                canonical_facts: connection.reported.canonical_facts,
                tags: connection.reported.tags,
            },
            None => Self {
                status: "disconnected",
                dispatchers: Value::Null,
                canonical_facts: Value::Null,
                tags: Value::Null,
            },
        }
    }
}
