//! Everything that the database contains about one client, for support: the stored client, connected
//! or not, its presence history and its dead letters.

use async_trait::async_trait;

use domain::{
    ClientId, ClientInfo, ClientKind, DialectName, OfflineReason, OrgId, Tenant, Timestamp,
};

use crate::dead_letters::StoredDeadLetter;
use crate::error::Result;

/// A stored client: its row in `connections` or, if it has no such row, in `disconnected_clients`.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientRecord {
    /// Client id.
    pub client_id: ClientId,
    /// The client's tenant. `None` for a tenantless client.
    pub tenant: Option<Tenant>,
    /// Dialect of the latest online message.
    pub dialect: DialectName,
    /// Whether the client is a host or a proxy.
    pub kind: ClientKind,
    /// Prefix of the client's topics.
    pub topic_prefix: String,
    /// Facts, dispatchers, tags, name and version that the client sent.
    pub info: ClientInfo,
    /// Whether the client is connected.
    pub status: ClientStatus,
    /// Time at which the latest connection became visible to the organization. For a row of an earlier
    /// version, the time of the latest online message.
    pub connected_since: Timestamp,
    /// Time of the latest message of the client, which can be some minutes too early. For a
    /// disconnected client in a row of an earlier version, the time of the disconnect.
    pub last_seen: Timestamp,
    /// Number of times that the client has connected again since it was first seen in its
    /// organization.
    pub reconnects: u64,
    /// Number of reconnects since [`Self::hourly_reconnects_since`].
    pub hourly_reconnects: u64,
    /// Start of the time in which [`Self::hourly_reconnects`] are counted. At most one hour before the
    /// latest reconnect. `None` if the client has not reconnected.
    pub hourly_reconnects_since: Option<Timestamp>,
    /// Number of lookups by the tenantless job that found no tenant.
    pub failed_lookups: u32,
    /// Time of the latest lookup that found no tenant. `None` for a client with a tenant. The Unix
    /// epoch if a lookup is due immediately.
    pub last_lookup_at: Option<Timestamp>,
}

/// Whether a stored client is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientStatus {
    /// The client is connected.
    Connected,
    /// The client is disconnected.
    Disconnected {
        /// Time of the disconnect.
        at: Timestamp,
        /// Why the client is disconnected. `None` in a row of an earlier version.
        reason: Option<OfflineReason>,
    },
}

/// A stored transition of a client's presence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// Number of the transition, counted for each client. A gap in the numbers is the number of merged
    /// transitions.
    pub number: u64,
    /// Time of the transition.
    pub at: Timestamp,
    /// Organization that saw the transition. `None` for a tenantless client.
    pub org: Option<OrgId>,
    /// The new status: `online` or `offline`.
    pub status: String,
    /// Name of the cause of an online transition, or of the reason of an offline transition. The type
    /// is `String`, because another version of the program can have stored a reason that this version
    /// does not define.
    pub reason: String,
}

/// Result of [`ClientRepository::trim_history`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrimmedHistory {
    /// Number of deleted history entries.
    pub deleted_entries: u64,
    /// The last client that was checked. `None` if no client follows.
    pub last_client: Option<ClientId>,
}

/// Reads what is stored about a client, for the API, and deletes old history entries.
///
/// Methods for callers of one organization have an [`OrgId`] as parameter. Only management endpoints
/// and jobs may call the other methods.
#[async_trait]
pub trait ClientRepository: Send + Sync + 'static {
    /// Finds a connected or disconnected client of an organization. Returns `None` for an unknown
    /// client, for a client of another organization, and for a tenantless client. Runs the same query
    /// in each case, so the duration does not reveal whether another organization has the client.
    async fn find_client_for_org(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<ClientRecord>>;

    /// Finds a connected or disconnected client of any organization, tenantless clients included. Only
    /// management endpoints may call this method.
    async fn find_client(&self, client: &ClientId) -> Result<Option<ClientRecord>>;

    /// Lists the presence history of a client, newest entry first. Starts before the entry with the
    /// number `before_number`. `None` starts at the newest entry.
    ///
    /// With an organization, lists only the entries of the organization. Without, lists the entries of
    /// all organizations. Only management endpoints may omit the organization.
    async fn list_history(
        &self,
        org: Option<&OrgId>,
        client: &ClientId,
        before_number: Option<u64>,
        limit: u32,
    ) -> Result<Vec<HistoryEntry>>;

    /// Finds clients of any organization, tenantless clients included, whose client id, `fqdn`,
    /// `insights_id` or `subscription_manager_id` is equal to `text`. Returns at most `limit` clients
    /// in the order of their ids. Only management endpoints may call this method.
    async fn search_clients(&self, text: &str, limit: u32) -> Result<Vec<ClientRecord>>;

    /// Lists the dead letters of a client without their payloads, last received first. Only management
    /// endpoints may call this method.
    async fn recent_dead_letters(
        &self,
        client: &ClientId,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>>;

    /// Deletes at most `limit` history entries of transitions before `time`. Returns the number of
    /// deleted entries. If the number is less than `limit`, no such entry remains, except for entries
    /// that another transaction deletes at this moment.
    async fn delete_history_before(&self, time: Timestamp, limit: u32) -> Result<u64>;

    /// Deletes the oldest history entries of the next clients after `after_client`, in ascending order
    /// of the client ids: entries whose number is `max_entries_per_client` or more below the newest
    /// number of the client. `None` starts at the first client.
    async fn trim_history(
        &self,
        after_client: Option<&ClientId>,
        clients_per_call: u32,
        max_entries_per_client: u32,
    ) -> Result<TrimmedHistory>;
}
