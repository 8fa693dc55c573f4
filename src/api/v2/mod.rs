//! The second generation: tenants are organisations.

mod asking;
mod batch_status;
mod commands;
mod list_connections;
mod list_filters;
mod message;
mod status;

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use serde::Serialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

use super::openapi::{Callers, Endpoint, group};
use crate::domain::Connection;

pub(super) fn endpoints() -> Vec<Endpoint> {
    group(
        Callers::Organisations,
        [
            routes!(list_connections::list),
            routes!(batch_status::status),
            routes!(status::status),
            routes!(message::send),
            routes!(asking::ping),
            routes!(asking::check),
            routes!(commands::reconnect),
            routes!(commands::disconnect),
        ],
    )
}

/// What the document says of the client in the path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "describes; it is read as text")]
struct ClientInPath {
    /// The client, by the name on its certificate.
    #[param(min_length = 1, example = "my-machine")]
    client_id: String,
}

/// The client in the path.
type ClientIdPath = Path<String>;

/// A path that is not text names nobody.
fn named(client_id: Result<ClientIdPath, PathRejection>) -> String {
    client_id.map(|Path(name)| name).unwrap_or_default()
}

/// A connection as callers see it. Empty strings and nulls are left out, `{}` is kept.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Connection)]
struct ConnectionView {
    /// The organisation's account number, where it has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    account: String,
    /// The organisation that it belongs to.
    org_id: String,
    client_id: String,
    /// What identifies the machine.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Object)]
    canonical_facts: Value,
    /// What messages can be directed to, by name.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Object)]
    dispatchers: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Object)]
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
