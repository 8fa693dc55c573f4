//! The first generation, kept for callers that know it: tenants are account numbers, and what is
//! done to any tenant's connection has endpoints of its own.

mod disconnect;
mod list_connections;
mod message;
mod ping;
mod reconnect;
mod status;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::auth::AccountCaller;
use super::error::ApiError;
use super::json;
use super::openapi::{Callers, Endpoint, group};
use super::{ApiState, SharedState};
use crate::domain::Connection;
use crate::protocol::Command;

pub(super) fn endpoints() -> Vec<Endpoint> {
    let mut all = group(
        Callers::Accounts,
        [routes!(message::send), routes!(status::for_tenant)],
    );
    all.extend(group(
        Callers::Management,
        [
            routes!(list_connections::all),
            routes!(list_connections::of_account),
            routes!(status::for_management),
            routes!(ping::ping),
            routes!(reconnect::reconnect),
            routes!(disconnect::disconnect),
        ],
    ));
    all
}

/// Names a connection by account and client.
#[derive(Debug, Deserialize, ToSchema)]
struct Node {
    /// The account that the client belongs to.
    #[serde(default)]
    #[schema(required = true, min_length = 1, example = "111000")]
    account: String,
    /// The client.
    #[serde(default)]
    #[schema(required = true, min_length = 1, example = "my-machine")]
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
    async fn find(&self, parts: &ApiState) -> Result<Option<Connection>, ApiError> {
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
async fn command(parts: &SharedState, node: &Node, command: &Command) -> Result<(), ApiError> {
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
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "status", rename_all = "lowercase")]
#[schema(as = NodeStatus)]
enum StatusView {
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

impl From<Option<Connection>> for StatusView {
    fn from(found: Option<Connection>) -> Self {
        match found {
            Some(connection) => Self::Connected {
                dispatchers: connection.reported.dispatchers,
                canonical_facts: connection.reported.canonical_facts,
                tags: connection.reported.tags,
            },
            None => Self::Disconnected,
        }
    }
}
