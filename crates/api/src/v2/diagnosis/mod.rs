//! `GET /v2/clients/{client_id}/diagnosis` (management): returns one document that says whether and why
//! a client cannot be reached. `explanation` derives its sentences from the stored facts.

mod explanation;
#[cfg(test)]
mod explanation_tests;
mod rejections;
#[cfg(test)]
mod test_facts;

use axum::extract::State;
use axum::extract::rejection::PathRejection;
use serde::Serialize;
use utoipa::ToSchema;

use super::{ClientIdParam, ClientIdPath, client_id_from_path};
use crate::audit::{AuditedAction, run_audited};
use crate::auth::ManagementCaller;
use crate::error::ApiError;
use crate::json::Json;
use crate::{ApiState, LookupRetries, SharedState};
use domain::{BrokerRejection, ClientId, OfflineReason, Timestamp};
use explanation::{ClientFacts, Explanation, explain};
use store::{ClientRecord, ClientStatus, HistoryEntry, StoredDeadLetter};

/// Maximum number of history entries, and of dead letters.
const MAX_ENTRIES: u32 = 10;

/// The state of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum ClientState {
    /// The client is connected and belongs to an organization.
    Connected,
    /// The client is stored, but it is not connected.
    Disconnected,
    /// The client is connected but belongs to no organization, so no organization can reach it.
    Tenantless,
    /// Nothing is stored about the client.
    Unknown,
}

impl ClientState {
    pub fn of(record: Option<&ClientRecord>) -> Self {
        match record {
            None => Self::Unknown,
            Some(record) => match (record.status, &record.tenant) {
                (ClientStatus::Disconnected { .. }, _) => Self::Disconnected,
                (ClientStatus::Connected, None) => Self::Tenantless,
                (ClientStatus::Connected, Some(_)) => Self::Connected,
            },
        }
    }
}

/// Everything that helps to find out why a client cannot be reached.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Diagnosis {
    client_id: String,
    state: ClientState,
    /// One sentence about the state of the client and its cause.
    summary: String,
    /// What to do. Null if there is no known problem.
    suggestion: Option<String>,
    /// Organization of the client. Null if the client belongs to no organization, or is unknown.
    org_id: Option<String>,
    /// Account number of the organization. Null if there is none.
    account: Option<String>,
    /// Name of the client program, as the client sent it.
    client_name: Option<String>,
    /// Version of the client program, as the client sent it.
    client_version: Option<String>,
    /// Start of the latest connection.
    #[schema(format = DateTime)]
    connected_since: Option<String>,
    /// Time of the latest message of the client. It can be some minutes too early.
    #[schema(format = DateTime)]
    last_seen: Option<String>,
    /// Time of the disconnect. Null if the client is connected.
    #[schema(format = DateTime)]
    disconnected_at: Option<String>,
    /// Why the client is disconnected. Null if the client is connected or the reason was not recorded.
    #[schema(value_type = Option<String>)]
    reason: Option<&'static str>,
    /// Number of times that the client has connected again since it was first seen in its
    /// organization.
    reconnects: Option<u64>,
    /// Null if the client has not reconnected.
    recent_reconnects: Option<RecentReconnects>,
    /// The search for the organization of a client that has none. Otherwise null.
    tenant_lookup: Option<TenantLookup>,
    /// Messages of the client that could not be processed, latest first. At most 10.
    dead_letters: Vec<DeadLetterView>,
    /// Connections, publishes and subscriptions with this client id that the embedded broker rejected,
    /// latest first. Null with an external MQTT broker, whose log contains its rejections.
    broker_rejections: Option<Vec<RejectionView>>,
    /// The latest transitions between connected and disconnected, newest first. At most 10.
    history: Vec<TransitionView>,
}

/// The number of reconnects within about one hour.
#[derive(Debug, Serialize, ToSchema)]
struct RecentReconnects {
    count: u64,
    /// Start of the time in which the reconnects are counted.
    #[schema(format = DateTime)]
    since: String,
}

#[derive(Debug, Serialize, ToSchema)]
struct TenantLookup {
    /// `not-found` if the latest lookup found no organization, or `pending` if the client has not been
    /// looked up: the lookup service has not answered, or an operator has requested another lookup.
    outcome: &'static str,
    /// Number of lookups that found no organization.
    failed_lookups: u32,
    /// Number of failed lookups after which the client is not looked up again.
    max_failed_lookups: u32,
    /// Time of the latest lookup. Null if the client has not been looked up.
    #[schema(format = DateTime)]
    last_lookup_at: Option<String>,
    /// Earliest time of the next lookup. Null if there is no further lookup.
    #[schema(format = DateTime)]
    next_lookup_at: Option<String>,
    /// Whether the maximum number of failed lookups is reached, so there is no further lookup.
    gave_up: bool,
}

#[derive(Debug, Serialize, ToSchema)]
struct DeadLetterView {
    /// Number of the dead letter in operator commands.
    id: i64,
    reason: String,
    /// What was wrong with the message.
    detail: String,
    topic: String,
    #[schema(format = DateTime)]
    last_received: String,
    /// Number of times that the message was received.
    occurrences: u64,
}

#[derive(Debug, Serialize, ToSchema)]
struct RejectionView {
    /// Name of the reason, as in the metric `cloud_connector_broker_rejections_total`.
    reason: String,
    /// Address of the rejected peer.
    peer: String,
    #[schema(format = DateTime)]
    at: String,
}

#[derive(Debug, Serialize, ToSchema)]
struct TransitionView {
    number: u64,
    #[schema(format = DateTime)]
    at: String,
    /// Organization that saw the transition. Null if the client belonged to no organization.
    org_id: Option<String>,
    /// `online` or `offline`.
    status: String,
    reason: String,
}

/// When a tenantless client is looked up again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextLookup {
    /// Not before this time.
    At(Timestamp),
    /// Never, because the maximum number of failed lookups is reached.
    GaveUp,
}

impl NextLookup {
    fn of(record: &ClientRecord, retries: LookupRetries) -> Self {
        if record.failed_lookups >= retries.max_attempts {
            return Self::GaveUp;
        }
        let last_lookup = record.last_lookup_at.unwrap_or(Timestamp::UNIX_EPOCH);
        let next = last_lookup.checked_add(retries.retry_interval);
        Self::At(next.unwrap_or(Timestamp::MAX))
    }
}

/// Diagnose a client
///
/// Returns the state of a client of any organization, its cause, and what to do. Also returns the facts
/// from which these are derived.
#[utoipa::path(
    get,
    path = "/clients/{client_id}/diagnosis",
    operation_id = "v2.client.diagnosis",
    params(ClientIdParam),
    responses((
        status = 200,
        description = "The diagnosis, also of an unknown client.",
        body = Diagnosis
    )),
)]
pub(super) async fn diagnosis(
    State(state): State<SharedState>,
    caller: ManagementCaller,
    path: Result<ClientIdPath, PathRejection>,
) -> Result<Json<Diagnosis>, ApiError> {
    let client_id = client_id_from_path(path);
    let action = AuditedAction {
        caller: &caller.audit_name,
        action: "diagnosis",
        tenant: "",
        client_id: &client_id,
    };
    let diagnose = diagnose(&state, &client_id);
    run_audited(&action, diagnose).await.map(Json)
}

async fn diagnose(state: &ApiState, client_id: &str) -> Result<Diagnosis, ApiError> {
    let clients = &state.clients;
    let (mut record, mut history, mut dead_letters) = (None, Vec::new(), Vec::new());
    // Nothing is stored about a client with an invalid id, but the broker may have rejected it.
    if let Ok(client) = ClientId::new(client_id) {
        record = clients.find_client(&client).await?;
        let entries = clients.list_history(None, &client, None, MAX_ENTRIES);
        history = entries.await?;
        dead_letters = clients.recent_dead_letters(&client, MAX_ENTRIES).await?;
    }
    let rejections = state.broker_rejections.as_ref().map(|list| list(client_id));
    let facts = ClientFacts {
        now: state.clock.now(),
        record: record.as_ref(),
        history: &history,
        dead_letters: &dead_letters,
        rejections: rejections.as_deref(),
        lookup_retries: state.lookup_retries,
    };
    Ok(Diagnosis::new(client_id, &facts))
}

impl Diagnosis {
    fn new(client_id: &str, facts: &ClientFacts<'_>) -> Self {
        let Explanation {
            summary,
            suggestion,
        } = explain(facts);
        let record = facts.record;
        let tenant = record.and_then(|record| record.tenant.as_ref());
        let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let (disconnected_at, reason) = match record.map(|record| record.status) {
            Some(ClientStatus::Disconnected { at, reason }) => (Some(at.to_string()), reason),
            _ => (None, None),
        };
        let rejections = facts.rejections;
        Self {
            client_id: client_id.to_owned(),
            state: ClientState::of(record),
            summary,
            suggestion,
            org_id: tenant.map(|tenant| tenant.org_id.to_string()),
            account: tenant.and_then(|tenant| text(&tenant.account)),
            client_name: record.and_then(|record| text(&record.info.client_name)),
            client_version: record.and_then(|record| text(&record.info.client_version)),
            connected_since: record.map(|record| record.connected_since.to_string()),
            last_seen: record.map(|record| record.last_seen.to_string()),
            disconnected_at,
            reason: reason.map(OfflineReason::as_str),
            reconnects: record.map(|record| record.reconnects),
            recent_reconnects: record.and_then(RecentReconnects::new),
            tenant_lookup: record
                .and_then(|record| TenantLookup::new(record, facts.lookup_retries)),
            dead_letters: facts.dead_letters.iter().map(Into::into).collect(),
            broker_rejections: rejections.map(|all| all.iter().map(Into::into).collect()),
            history: facts.history.iter().map(Into::into).collect(),
        }
    }
}

impl RecentReconnects {
    fn new(record: &ClientRecord) -> Option<Self> {
        record.hourly_reconnects_since.map(|since| Self {
            count: record.hourly_reconnects,
            since: since.to_string(),
        })
    }
}

impl TenantLookup {
    fn new(record: &ClientRecord, retries: LookupRetries) -> Option<Self> {
        if record.tenant.is_some() {
            return None;
        }
        let next_lookup = NextLookup::of(record, retries);
        let last_lookup = record.last_lookup_at;
        let last_lookup = last_lookup.filter(|time| *time > Timestamp::UNIX_EPOCH);
        Some(Self {
            outcome: if last_lookup.is_some() {
                "not-found"
            } else {
                "pending"
            },
            failed_lookups: record.failed_lookups,
            max_failed_lookups: retries.max_attempts,
            last_lookup_at: last_lookup.map(|time| time.to_string()),
            next_lookup_at: match next_lookup {
                NextLookup::At(time) => Some(time.to_string()),
                NextLookup::GaveUp => None,
            },
            gave_up: next_lookup == NextLookup::GaveUp,
        })
    }
}

impl From<&StoredDeadLetter> for DeadLetterView {
    fn from(dead_letter: &StoredDeadLetter) -> Self {
        Self {
            id: dead_letter.id,
            reason: dead_letter.reason.clone(),
            detail: dead_letter.detail.clone(),
            topic: dead_letter.topic.clone(),
            last_received: dead_letter.last_received.to_string(),
            occurrences: dead_letter.occurrences,
        }
    }
}

impl From<&BrokerRejection> for RejectionView {
    fn from(rejection: &BrokerRejection) -> Self {
        Self {
            reason: rejection.reason.clone(),
            peer: rejection.peer.clone(),
            at: rejection.at.to_string(),
        }
    }
}

impl From<&HistoryEntry> for TransitionView {
    fn from(entry: &HistoryEntry) -> Self {
        Self {
            number: entry.number,
            at: entry.at.to_string(),
            org_id: entry.org.as_ref().map(ToString::to_string),
            status: entry.status.clone(),
            reason: entry.reason.clone(),
        }
    }
}
