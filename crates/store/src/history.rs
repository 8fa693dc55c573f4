//! Presence history and events: the rows that a presence change adds.

use domain::{ClientId, OfflineReason, OnlineCause, Tenant, Timestamp};
use serde_json::Value;

/// A change of a client's presence, as its organization sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// The connection became visible to the organization.
    Online(OnlineCause),
    /// The connection is no longer visible to the organization.
    Offline(OfflineReason),
}

impl Transition {
    /// Returns the name of the new status, in the database and in the API.
    #[must_use]
    pub fn status(self) -> &'static str {
        match self {
            Self::Online(_) => "online",
            Self::Offline(_) => "offline",
        }
    }

    /// Returns the name of the cause or of the reason, in the database and in the API.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Online(cause) => cause.as_str(),
            Self::Offline(reason) => reason.as_str(),
        }
    }
}

/// A row of `presence_history`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryRow {
    /// Client id.
    pub client_id: ClientId,
    /// Number of the transition, counted for each client. Transitions that are merged in one batch have
    /// no row of their own, so a gap in the numbers is the number of merged transitions.
    pub number: u64,
    /// Time of the transition.
    pub at: Timestamp,
    /// Organization that sees the transition. `None` for a tenantless client.
    pub tenant: Option<Tenant>,
    /// The new status and its cause.
    pub transition: Transition,
}

/// An event that is written in the transaction of its cause.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// Client id.
    pub client_id: ClientId,
    /// Organization that receives the event.
    pub tenant: Tenant,
    /// Time of the event.
    pub at: Timestamp,
    /// Type of the event, for example `connection.online`.
    pub event_type: &'static str,
    /// The fields that only this type of event has, as a JSON object.
    pub data: Value,
    /// The dispatchers before the event, if they differ from the dispatchers in `data`.
    pub previous_dispatchers: Option<Value>,
}
