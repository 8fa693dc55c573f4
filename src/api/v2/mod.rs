//! The second generation: tenants are organisations.

mod asking;
mod batch_status;
mod commands;
mod connections;
mod filter;
mod message;
mod status;

use axum::Router;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::routing::{get, post};
use serde::Serialize;
use serde_json::Value;

use super::Shared;
use crate::domain::Connection;

pub(super) fn router() -> Router<Shared> {
    Router::new()
        .route("/connections", get(connections::list))
        .route("/connections/status", post(batch_status::status))
        .route("/connections/{client_id}/status", get(status::status))
        .route("/connections/{client_id}/message", post(message::send))
        .route("/connections/{client_id}/ping", post(asking::ping))
        .route("/connections/{client_id}/check", post(asking::check))
        .route(
            "/connections/{client_id}/reconnect",
            post(commands::reconnect),
        )
        .route(
            "/connections/{client_id}/disconnect",
            post(commands::disconnect),
        )
}

/// The client in the path.
type Named = Path<String>;

/// A path that is not text names nobody.
fn named(client_id: Result<Named, PathRejection>) -> String {
    client_id.map(|Path(name)| name).unwrap_or_default()
}

/// A connection as callers see it. Empty strings and nulls are left out, `{}` is kept.
#[derive(Debug, Serialize)]
struct ConnectionView {
    #[serde(skip_serializing_if = "String::is_empty")]
    account: String,
    org_id: String,
    client_id: String,
    #[serde(skip_serializing_if = "Value::is_null")]
    canonical_facts: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    dispatchers: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    tags: Value,
}

impl From<Connection> for ConnectionView {
    fn from(connection: Connection) -> Self {
        Self {
            account: connection.tenant.account,
            org_id: connection.tenant.org_id.to_string(),
            client_id: connection.client_id.to_string(),
            canonical_facts: connection.reported.canonical_facts,
            dispatchers: connection.reported.dispatchers,
            tags: connection.reported.tags,
        }
    }
}
