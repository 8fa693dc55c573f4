//! `GET /v2/clients` (management): finds clients of any organization by one of their identifiers.

use axum::extract::{OriginalUri, State};
use serde::Serialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::diagnosis::ClientState;
use super::{invalid_request_error, reject_unknown_params};
use crate::SharedState;
use crate::audit::{AuditedAction, run_audited};
use crate::auth::ManagementCaller;
use crate::error::ApiError;
use crate::json::Json;
use crate::pagination::{last_param_value, query_params};
use domain::OfflineReason;
use store::{ClientRecord, ClientStatus};

/// Maximum number of clients in a response.
const MAX_CLIENTS: u32 = 100;

/// OpenAPI description of the query parameter.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only documents the parameter")]
struct SearchParams {
    /// Client id, FQDN, `insights_id` or `subscription_manager_id`. The whole text is compared, and
    /// letter case matters.
    search: String,
}

/// A client of any organization. Fields that are null are omitted, except for `org_id`.
#[derive(Debug, Serialize, ToSchema)]
struct FoundClient {
    client_id: String,
    /// Null if the client belongs to no organization.
    org_id: Option<String>,
    /// Account number of the organization. Empty if there is none.
    account: String,
    state: ClientState,
    /// Facts by which clients can be found.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    fqdn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    insights_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    subscription_manager_id: Option<String>,
    /// Start of the latest connection.
    #[schema(format = DateTime)]
    connected_since: String,
    /// Time of the latest message of the client.
    #[schema(format = DateTime)]
    last_seen: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    disconnected_at: Option<String>,
    /// Why the client is disconnected.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, nullable = false)]
    reason: Option<&'static str>,
}

impl From<&ClientRecord> for FoundClient {
    fn from(record: &ClientRecord) -> Self {
        let fact = |name| {
            let fact = record.info.canonical_facts.get(name);
            fact.and_then(Value::as_str).map(str::to_owned)
        };
        let (disconnected_at, reason) = match record.status {
            ClientStatus::Connected => (None, None),
            ClientStatus::Disconnected { at, reason } => (Some(at.to_string()), reason),
        };
        let tenant = record.tenant.as_ref();
        Self {
            client_id: record.client_id.to_string(),
            org_id: tenant.map(|tenant| tenant.org_id.to_string()),
            account: tenant.map_or_else(String::new, |tenant| tenant.account.clone()),
            state: ClientState::of(Some(record)),
            fqdn: fact("fqdn"),
            insights_id: fact("insights_id"),
            subscription_manager_id: fact("subscription_manager_id"),
            connected_since: record.connected_since.to_string(),
            last_seen: record.last_seen.to_string(),
            disconnected_at,
            reason: reason.map(OfflineReason::as_str),
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FoundClients {
    /// At most 100 clients, ordered by client id.
    data: Vec<FoundClient>,
}

/// Find clients of any organization
///
/// Returns the clients whose client id, FQDN, `insights_id` or `subscription_manager_id` is equal to
/// the text. The result includes disconnected clients and clients that belong to no organization.
#[utoipa::path(
    get,
    path = "/clients",
    operation_id = "v2.clients.search",
    params(SearchParams),
    responses((status = 200, description = "The found clients.", body = FoundClients)),
)]
pub(super) async fn search_clients(
    State(state): State<SharedState>,
    caller: ManagementCaller,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<FoundClients>, ApiError> {
    let params = query_params(&uri);
    reject_unknown_params(&params, &["search"])?;
    let text = last_param_value(&params, "search").ok_or_else(|| {
        invalid_request_error(
            "search is missing; set it to a client id, an FQDN, an insights_id or a \
             subscription_manager_id",
        )
    })?;
    let action = AuditedAction {
        caller: &caller.audit_name,
        action: "search",
        tenant: "",
        client_id: text,
    };
    let search = async {
        // PostgreSQL rejects NUL in text. No stored value contains NUL.
        if text.is_empty() || text.contains('\0') {
            return Ok(Vec::new());
        }
        Ok(state.clients.search_clients(text, MAX_CLIENTS).await?)
    };
    let records = run_audited(&action, search).await?;
    let data = records.iter().map(FoundClient::from).collect();
    Ok(Json(FoundClients { data }))
}
