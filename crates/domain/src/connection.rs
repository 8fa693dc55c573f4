//! A client's connection: its tenant, its dialect, and the information that the client reported.

use std::borrow::Cow;
use std::fmt;

use serde_json::{Map, Value};

use super::{ClientId, MessageId, Tenant, Timestamp};

/// The name of a dialect: the message format that a client uses. The service sends messages in the
/// dialect of the client's latest presence message.
///
/// The crate `protocol` implements the dialects. A name from the database may belong to no
/// implemented dialect, for example after a downgrade.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DialectName(Cow<'static, str>);

impl DialectName {
    /// Creates the name of an implemented dialect. Cloning such a name does not allocate memory.
    #[must_use]
    pub const fn from_static(name: &'static str) -> Self {
        Self(Cow::Borrowed(name))
    }

    /// Returns the name as text. The database and logs contain this text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for DialectName {
    /// Creates a name from the text in the database.
    fn from(name: String) -> Self {
        Self(Cow::Owned(name))
    }
}

impl fmt::Display for DialectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The kind of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientKind {
    /// A machine that connects directly.
    Host,
    /// A proxy that connects on behalf of machines.
    Proxy,
}

impl ClientKind {
    /// Returns the name of the kind in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Proxy => "proxy",
        }
    }

    /// Returns the kind with this name. Returns `None` if the name is unknown.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "host" => Some(Self::Host),
            "proxy" => Some(Self::Proxy),
            _ => None,
        }
    }
}

/// The information about a client that its online message contains.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientInfo {
    /// Facts that identify the machine, as a JSON object. Empty if the client sent no facts.
    pub canonical_facts: Value,
    /// Facts about the service behind a proxy, as a JSON object or null.
    pub catalog_service_facts: Value,
    /// The client's workers by name, as a JSON object or null.
    pub dispatchers: Value,
    /// The client's tags, as a JSON object or null.
    pub tags: Value,
    /// Name of the client program. Empty if the client sent no name.
    pub client_name: String,
    /// Version of the client program. Empty if the client sent no version.
    pub client_version: String,
}

impl Default for ClientInfo {
    /// Returns the information of a client that sent none.
    fn default() -> Self {
        Self {
            canonical_facts: Value::Object(Map::new()),
            catalog_service_facts: Value::Null,
            dispatchers: Value::Null,
            tags: Value::Null,
            client_name: String::new(),
            client_version: String::new(),
        }
    }
}

impl ClientInfo {
    /// Returns whether the client has a worker with this name. `-` and `_` are treated as equal,
    /// because some clients write `-` and other clients write `_` in the name of the same worker.
    #[must_use]
    pub fn has_dispatcher(&self, worker_name: &str) -> bool {
        let normalized = normalize_dispatcher(worker_name);
        let dispatchers = self.dispatchers.as_object();
        dispatchers.is_some_and(|all| {
            all.keys()
                .any(|key| normalize_dispatcher(key) == normalized)
        })
    }
}

/// Returns the name of a dispatcher in the form in which names are compared: with `-` instead of `_`.
#[must_use]
pub fn normalize_dispatcher(name: &str) -> String {
    name.replace('_', "-")
}

/// Name of the dispatcher that only Satellite servers report.
const SATELLITE_DISPATCHER: &str = "foreman_rh_cloud";

/// A connected client that has a tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct Connection {
    /// The id of the connected client.
    pub client_id: ClientId,
    /// The client's organization and account.
    pub tenant: Tenant,
    /// The dialect for messages to the client.
    pub dialect: DialectName,
    /// The kind of the client.
    pub kind: ClientKind,
    /// The prefix of the client's topics.
    pub topic_prefix: String,
    /// The information that the client reported about itself.
    pub info: ClientInfo,
    /// The message id of the client's online message. `None` if the message had no id.
    pub message_id: Option<MessageId>,
    /// Time at which the client sent its online message, according to the client's clock. If the
    /// client's time is after the receive time, the field contains the receive time instead.
    pub message_sent_at: Timestamp,
    /// Time at which this service received the client's online message. If a heartbeat restored the
    /// connection of a disconnected client, the time at which the service received the heartbeat.
    /// Together with `message_id`, the time distinguishes this connection from later connections of
    /// the client.
    pub online_received_at: Timestamp,
    /// Time at which the connection became visible to the organization.
    pub connected_since: Timestamp,
    /// Time of the latest message of the client. It can be some minutes too early, because it is not
    /// stored for each message.
    pub last_seen: Timestamp,
}

impl Connection {
    /// Returns whether the client is a Satellite server, which serves hosts of many organizations.
    #[must_use]
    pub fn is_satellite(&self) -> bool {
        self.info.has_dispatcher(SATELLITE_DISPATCHER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn dispatcher_lookup_treats_dash_and_underscore_as_equal() {
        let mut info = ClientInfo {
            dispatchers: json!({"rhc_worker_playbook": null, "echo": {}}),
            ..ClientInfo::default()
        };
        assert!(info.has_dispatcher("rhc-worker-playbook"));
        assert!(info.has_dispatcher("rhc_worker-playbook"));
        assert!(!info.has_dispatcher("package-manager"));
        info.dispatchers = Value::Null;
        assert!(!info.has_dispatcher("echo"));
    }
}
