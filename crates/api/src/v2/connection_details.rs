//! `GET /v2/connections/{client_id}`: returns everything that is stored about a client of the
//! organization.

use axum::extract::State;
use axum::extract::rejection::PathRejection;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{ClientIdParam, ClientIdPath, client_id_from_path};
use crate::SharedState;
use crate::auth::OrgCaller;
use crate::error::ApiError;
use crate::json::Json;
use domain::{ClientId, OfflineReason, Tenant};
use store::{ClientRecord, ClientStatus};

/// Everything that is stored about a client. Fields that are null or `""` are omitted. Fields that
/// are `{}` are not omitted.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StoredClient {
    /// Account number of the organization, if the organization has an account number.
    #[serde(skip_serializing_if = "String::is_empty")]
    account: String,
    /// Organization that the client belongs to.
    org_id: String,
    client_id: String,
    /// `host` for a machine that connects directly, or `proxy`.
    kind: &'static str,
    /// Name of the message format that the client uses.
    dialect: String,
    /// Prefix of the client's MQTT topics.
    topic_prefix: String,
    /// Facts that identify the machine.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Object)]
    canonical_facts: Value,
    /// Facts about the service behind a proxy.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Object)]
    catalog_service_facts: Value,
    /// Applications on the client that accept messages, by name.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Object)]
    dispatchers: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Object)]
    tags: Value,
    /// Name of the client program.
    #[serde(skip_serializing_if = "String::is_empty")]
    client_name: String,
    /// Version of the client program.
    #[serde(skip_serializing_if = "String::is_empty")]
    client_version: String,
    /// Start of the latest connection.
    #[schema(format = DateTime)]
    connected_since: String,
    /// Time of the latest message of the client. It can be some minutes too early.
    #[schema(format = DateTime)]
    last_seen: String,
    /// Number of times that the client has connected again since it was first seen.
    reconnects: u64,
}

/// A client of the organization that is disconnected.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DisconnectedClient {
    #[serde(flatten)]
    client: StoredClient,
    #[schema(format = DateTime)]
    disconnected_at: String,
    /// Why the client is disconnected: `client` (it closed the connection), `will` (the connection was
    /// lost), `disconnected` (by a caller), `expired` (no response to pings), `broker-restart`,
    /// `tenant-lost` or `moved` (to another organization). Null if the reason was not recorded.
    #[schema(value_type = Option<String>)]
    reason: Option<&'static str>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "status", rename_all = "lowercase")]
pub(super) enum ConnectionDetails {
    Connected(Box<StoredClient>),
    Disconnected(Box<DisconnectedClient>),
}

impl ConnectionDetails {
    fn new(tenant: Tenant, record: ClientRecord) -> Self {
        let client = StoredClient {
            account: tenant.account,
            org_id: tenant.org_id.to_string(),
            client_id: record.client_id.to_string(),
            kind: record.kind.as_str(),
            dialect: record.dialect.to_string(),
            topic_prefix: record.topic_prefix,
            canonical_facts: record.info.canonical_facts,
            catalog_service_facts: record.info.catalog_service_facts,
            dispatchers: record.info.dispatchers,
            tags: record.info.tags,
            client_name: record.info.client_name,
            client_version: record.info.client_version,
            connected_since: record.connected_since.to_string(),
            last_seen: record.last_seen.to_string(),
            reconnects: record.reconnects,
        };
        match record.status {
            ClientStatus::Connected => Self::Connected(Box::new(client)),
            ClientStatus::Disconnected { at, reason } => {
                Self::Disconnected(Box::new(DisconnectedClient {
                    client,
                    disconnected_at: at.to_string(),
                    reason: reason.map(OfflineReason::as_str),
                }))
            }
        }
    }
}

/// Get the details of a client
///
/// Returns everything that is stored about a connected or disconnected client of the organization.
#[utoipa::path(
    get,
    path = "/connections/{client_id}",
    operation_id = "v2.connection.details",
    params(ClientIdParam),
    responses(
        (status = 200, description = "Details of the client.", body = ConnectionDetails),
        (status = 404, description = "The organization has no such client.", body = ApiError),
    ),
)]
pub(super) async fn details(
    State(state): State<SharedState>,
    caller: OrgCaller,
    path: Result<ClientIdPath, PathRejection>,
) -> Result<Json<ConnectionDetails>, ApiError> {
    let client_id = client_id_from_path(path);
    let client_id = ClientId::new(&client_id).map_err(|_| ApiError::no_client())?;
    let found = state
        .clients
        .find_client_for_org(&caller.org_id, &client_id);
    let mut record = found.await?.ok_or_else(ApiError::no_client)?;
    let tenant = record.tenant.take().ok_or_else(ApiError::no_client)?;
    Ok(Json(ConnectionDetails::new(tenant, record)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use domain::{ClientInfo, ClientKind, OrgId, Timestamp};

    fn details_of(status: ClientStatus) -> Value {
        let tenant = Tenant {
            org_id: OrgId::new("1").unwrap(),
            account: String::new(),
        };
        let record = ClientRecord {
            client_id: ClientId::new("a").unwrap(),
            tenant: None,
            dialect: "status".to_owned().into(),
            kind: ClientKind::Host,
            topic_prefix: "p".to_owned(),
            info: ClientInfo::default(),
            status,
            connected_since: Timestamp::UNIX_EPOCH,
            last_seen: Timestamp::UNIX_EPOCH,
            reconnects: 3,
            hourly_reconnects: 0,
            hourly_reconnects_since: None,
            failed_lookups: 0,
            last_lookup_at: None,
        };
        serde_json::to_value(ConnectionDetails::new(tenant, record)).unwrap()
    }

    #[test]
    fn disconnected_client_has_the_fields_of_a_connected_client_and_two_more() {
        let mut expected = json!({
            "status": "connected", "org_id": "1", "client_id": "a", "kind": "host",
            "dialect": "status", "topic_prefix": "p", "canonical_facts": {},
            "connected_since": "1970-01-01T00:00:00Z", "last_seen": "1970-01-01T00:00:00Z",
            "reconnects": 3,
        });
        assert_eq!(details_of(ClientStatus::Connected), expected);
        expected["status"] = json!("disconnected");
        expected["disconnected_at"] = json!("1970-01-01T00:00:00Z");
        for (reason, name) in [
            (None, Value::Null),
            (Some(OfflineReason::TenantLost), json!("tenant-lost")),
        ] {
            expected["reason"] = name;
            let status = ClientStatus::Disconnected {
                at: Timestamp::UNIX_EPOCH,
                reason,
            };
            assert_eq!(details_of(status), expected);
        }
    }
}
