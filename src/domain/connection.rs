//! A connection: who is connected, to whom it belongs, and what it said of itself.

use serde_json::Value;

use super::{ClientId, MessageId, Tenant, Timestamp};

/// The dialect that a client spoke last, and is spoken to in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `…/{client}/control|data/in|out`, what rhc and yggdrasil speak.
    Status,
    /// `…/in|out/{client}`: retained handshakes.
    Handshake,
}

impl Dialect {
    /// Its name in the store and in logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Handshake => "handshake",
        }
    }

    /// The dialect of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "status" => Some(Self::Status),
            "handshake" => Some(Self::Handshake),
            _ => None,
        }
    }
}

/// What kind of client it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientKind {
    /// A machine.
    Host,
    /// Something that speaks for machines.
    Proxy,
}

impl ClientKind {
    /// Its name in the store.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Proxy => "proxy",
        }
    }

    /// The kind of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "host" => Some(Self::Host),
            "proxy" => Some(Self::Proxy),
            _ => None,
        }
    }
}

/// What a client reports about itself when it comes online.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientInfo {
    /// An object; `{}` when the client sent none.
    pub canonical_facts: Value,
    /// What a proxy says of the service behind it: an object, or null.
    pub catalog_service_facts: Value,
    /// An object of workers, or null.
    pub dispatchers: Value,
    /// Whatever the client calls its tags, or null.
    pub tags: Value,
    /// The client program's name; `""` when it did not say.
    pub client_name: String,
    /// The client program's version; `""` when it did not say.
    pub client_version: String,
}

impl ClientInfo {
    /// Whether the client has a worker of this name. `-` and `_` are the same: clients spell one
    /// worker either way.
    #[must_use]
    pub fn has_dispatcher(&self, name: &str) -> bool {
        let spelled = |name: &str| name.replace('_', "-");
        let wanted = spelled(name);
        let workers = self.dispatchers.as_object();
        workers.is_some_and(|workers| workers.keys().any(|worker| spelled(worker) == wanted))
    }
}

/// The dispatcher that Satellite servers advertise: they serve hosts of many organisations.
const SATELLITE: &str = "foreman_rh_cloud";

/// A connection that belongs to an organisation, as callers may see it.
#[derive(Debug, Clone, PartialEq)]
pub struct Connection {
    /// Who.
    pub client_id: ClientId,
    /// To whom it belongs.
    pub tenant: Tenant,
    /// How to speak to it.
    pub dialect: Dialect,
    /// What it is.
    pub kind: ClientKind,
    /// The topic prefix that it was heard on, and listens on.
    pub topic_prefix: String,
    /// What it said of itself.
    pub reported: ClientInfo,
    /// The online message that the row is of.
    pub message_id: Option<MessageId>,
    /// When that message was sent (never after it was received).
    pub message_sent: Timestamp,
}

impl Connection {
    /// Whether it is a Satellite server.
    #[must_use]
    pub fn is_satellite(&self) -> bool {
        self.reported.has_dispatcher(SATELLITE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_worker_is_found_in_either_spelling() {
        let mut reported = ClientInfo {
            canonical_facts: json!({}),
            catalog_service_facts: Value::Null,
            dispatchers: json!({"rhc_worker_playbook": null, "echo": {}}),
            tags: Value::Null,
            client_name: String::new(),
            client_version: String::new(),
        };
        assert!(reported.has_dispatcher("rhc-worker-playbook"));
        assert!(reported.has_dispatcher("rhc_worker-playbook"));
        assert!(!reported.has_dispatcher("package-manager"));
        reported.dispatchers = Value::Null;
        assert!(!reported.has_dispatcher("echo"));
    }
}
