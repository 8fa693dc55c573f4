//! Presence history and events: the rows that a presence change adds.

use std::fmt;
use std::io::Write;

use serde_json::{Value, json};

use domain::{ClientId, ClientInfo, MessageState, OfflineReason, OnlineCause, Tenant, Timestamp};

/// A change of a client's presence, as its organization sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// The connection became visible to the organization.
    Online(OnlineCause),
    /// The connection is no longer visible to the organization.
    Offline(OfflineReason),
    /// Another connection with the same client id replaced the connection. Nothing visible changed, so
    /// there is no event.
    Takeover,
}

impl Transition {
    /// Returns the name of the new status, in the database and in the API.
    #[must_use]
    pub fn status(self) -> &'static str {
        match self {
            Self::Online(_) | Self::Takeover => "online",
            Self::Offline(_) => "offline",
        }
    }

    /// Returns the name of the cause or of the reason, in the database and in the API.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Online(cause) => cause.as_str(),
            Self::Offline(reason) => reason.as_str(),
            Self::Takeover => "takeover",
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

impl HistoryRow {
    /// Returns the organization id. Empty for a tenantless client.
    #[must_use]
    pub fn org_id(&self) -> &str {
        let tenant = self.tenant.as_ref();
        tenant.map_or("", |tenant| tenant.org_id.as_str())
    }
}

/// Writes a log line for each transition, after its transaction was committed.
pub fn log_transitions(rows: &[HistoryRow]) {
    for row in rows {
        log_transition(row.client_id.as_str(), row.org_id(), row.transition);
    }
}

/// Writes a log line for a transition that an organization sees. `org_id` is empty for a tenantless client.
pub fn log_transition(client_id: &str, org_id: &str, transition: Transition) {
    let (status, reason) = (transition.status(), transition.reason());
    tracing::debug!(client_id, org_id, status, reason, "presence changed");
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
    /// Whether the stored dispatchers can differ from the dispatchers in `data`. The store then adds
    /// the stored dispatchers: to `data` of an offline event, because they are the last dispatchers that
    /// the organization has seen, and as the previous dispatchers of other events.
    pub dispatchers_changed: bool,
}

/// The data of events.
pub mod event_data {
    use super::{ClientInfo, MessageState, OfflineReason, OnlineCause, Value, json};

    pub use domain::event::{
        CONNECTION_OFFLINE as OFFLINE, CONNECTION_ONLINE as ONLINE, CONNECTION_UPDATED as UPDATED,
    };

    /// Returns the data of `connection.online`.
    #[must_use]
    pub fn online(info: &ClientInfo, cause: OnlineCause) -> Value {
        let mut data = content(info);
        data["cause"] = cause.as_str().into();
        data
    }

    /// Returns the data of `connection.updated`. `changed` has the names of the fields that changed.
    #[must_use]
    pub fn updated(info: &ClientInfo, changed: &[&str]) -> Value {
        let mut data = content(info);
        data["changed"] = changed.into();
        data
    }

    /// Returns the data of `connection.offline`.
    #[must_use]
    pub fn offline(reason: OfflineReason, connected_seconds: i64, dispatchers: &Value) -> Value {
        json!({
            "reason": reason.as_str(),
            "connected_for": connected_seconds.max(0),
            "dispatchers": dispatchers,
        })
    }

    /// Returns the data of the events of a tracked message.
    #[must_use]
    pub fn message(
        message_id: &str,
        directive: &str,
        state: MessageState,
        reason: Option<&str>,
        bulk_id: Option<&str>,
    ) -> Value {
        json!({
            "message_id": message_id,
            "directive": directive,
            "state": state.as_str(),
            "reason": reason,
            "bulk_id": bulk_id,
        })
    }

    fn content(info: &ClientInfo) -> Value {
        json!({
            "dispatchers": info.dispatchers,
            "tags": info.tags,
            "canonical_facts": info.canonical_facts,
            "client_version": info.client_version,
        })
    }
}

/// Hashes of the content that a client sent. Equal content has equal hashes, in all versions of the
/// program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentHashes([u32; 4]);

/// Names of the parts of the content, in the order of the hashes.
const PARTS: [&str; 4] = ["canonical_facts", "dispatchers", "tags", "client_version"];

/// Position of the dispatchers in [`PARTS`].
const DISPATCHERS: usize = 1;

impl ContentHashes {
    /// Computes the hashes of the content.
    #[must_use]
    pub fn new(info: &ClientInfo) -> Self {
        Self([
            json_hash(&info.canonical_facts),
            json_hash(&info.dispatchers),
            json_hash(&info.tags),
            bytes_hash(info.client_version.as_bytes()),
        ])
    }

    /// Parses the text in the database. Returns `None` if the text is invalid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut hashes = [0; PARTS.len()];
        if text.len() != 8 * PARTS.len() {
            return None;
        }
        for (index, hash) in hashes.iter_mut().enumerate() {
            let digits = text.get(8 * index..8 * (index + 1))?;
            *hash = u32::from_str_radix(digits, 16).ok()?;
        }
        Some(Self(hashes))
    }

    /// Returns the names of the parts that differ.
    #[must_use]
    pub fn changed_parts(&self, other: &Self) -> Vec<&'static str> {
        let parts = PARTS.iter().zip(self.0.iter().zip(other.0));
        let changed = parts.filter(|(_, (hash, other_hash))| *hash != other_hash);
        changed.map(|(name, _)| *name).collect()
    }

    /// Returns whether the dispatchers differ.
    #[must_use]
    pub fn dispatchers_differ(&self, other: &Self) -> bool {
        self.0[DISPATCHERS] != other.0[DISPATCHERS]
    }
}

impl fmt::Display for ContentHashes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|hash| write!(f, "{hash:08x}"))
    }
}

/// FNV-1a with 32 bits. It is written here, because the hash must never change, and needs no crate.
struct Fnv(u32);

impl Write for Fnv {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn bytes_hash(bytes: &[u8]) -> u32 {
    let mut hash = Fnv(0x811c_9dc5);
    let _ = hash.write(bytes);
    hash.0
}

/// Returns the hash of the text of the JSON value. The keys of objects are sorted.
fn json_hash(value: &Value) -> u32 {
    let mut hash = Fnv(0x811c_9dc5);
    // Writing to the hash and serializing a JSON value cannot fail.
    let _ = serde_json::to_writer(&mut hash, value);
    hash.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_hashes_name_the_changed_parts_and_have_a_stable_text() {
        let info = ClientInfo {
            canonical_facts: json!({"fqdn": "a.example", "bios_uuid": "x"}),
            dispatchers: json!({"echo": {}}),
            client_version: "1".to_owned(),
            ..ClientInfo::default()
        };
        let hashes = ContentHashes::new(&info);
        assert_eq!(hashes.to_string().len(), 32);
        assert_eq!(ContentHashes::parse(&hashes.to_string()), Some(hashes));
        assert_eq!(ContentHashes::parse("12"), None);
        let changed = ContentHashes::new(&ClientInfo {
            dispatchers: json!({"echo": {"a": 1}}),
            client_version: "2".to_owned(),
            ..info.clone()
        });
        assert_eq!(
            hashes.changed_parts(&changed),
            ["dispatchers", "client_version"]
        );
        assert!(hashes.dispatchers_differ(&changed));
        assert_eq!(hashes.changed_parts(&hashes), Vec::<&str>::new());
        // The value is stored, so it must be the same in all versions.
        assert_eq!(bytes_hash(b"a"), 0xe40c_292c);
    }
}
