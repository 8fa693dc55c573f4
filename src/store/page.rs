//! Types of paged lists: filter, requested page and returned page.

use crate::domain::{ClientId, Connection, Tenant};

/// Conditions that a connection must all meet. An empty filter matches every connection.
///
/// The values are stored in the form in which the database compares them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Dispatcher names, with `-` in place of `_`.
    pub(super) dispatchers: Vec<String>,
    /// Tag keys and values.
    pub(super) tags: Vec<(String, String)>,
    /// Fact keys and values. Values are in lower case, and UUIDs have no dashes.
    pub(super) facts: Vec<(String, String)>,
    /// Prefixes of the client id or of the FQDN.
    pub(super) prefixes: Vec<String>,
}

impl Filter {
    /// Requires a dispatcher. `-` and `_` in the name are equal.
    pub fn require_dispatcher(&mut self, name: &str) {
        self.dispatchers.push(name.replace('_', "-"));
    }

    /// Requires a tag with this value, or with a list that contains this value.
    pub fn require_tag(&mut self, key: &str, value: &str) {
        self.tags.push((key.to_owned(), value.to_owned()));
    }

    /// Requires a fact with this value, or with a list that contains this value. Ignores letter
    /// case and the dashes of a UUID.
    pub fn require_fact(&mut self, key: &str, value: &str) {
        let lower = value.to_ascii_lowercase();
        let without_dashes = lower.replace('-', "");
        // A UUID has 32 characters without dashes and 36 with dashes.
        let is_uuid =
            matches!(lower.len(), 32 | 36) && Self::is_uuid_without_dashes(&without_dashes);
        let value = if is_uuid { without_dashes } else { lower };
        self.facts.push((key.to_owned(), value));
    }

    /// Requires a client id or an FQDN with this prefix. Ignores the letter case of the FQDN.
    pub fn require_prefix(&mut self, prefix: &str) {
        self.prefixes.push(prefix.to_owned());
    }

    /// Whether the filter matches every connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn is_uuid_without_dashes(text: &str) -> bool {
        text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// Returns an exclusive upper bound of all texts with this prefix, compared byte by byte.
    pub(super) fn end_of_prefix_range(prefix: &str) -> String {
        format!("{prefix}{}", char::MAX)
    }
}

/// Start of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageStart {
    /// Skips this number of connections. The page contains the total count.
    Offset(u64),
    /// Starts after this client id, which need not exist. `""` starts at the first connection. The
    /// cost does not depend on the position. The page contains no total count.
    After(String),
}

/// A request for a page of an organization's connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// Which connections to list.
    pub filter: Filter,
    /// Start of the page.
    pub start: PageStart,
    /// Maximum number of connections on the page.
    pub limit: u64,
}

impl PageRequest {
    /// Creates a request without filter.
    #[must_use]
    pub fn at_offset(offset: u64, limit: u64) -> Self {
        Self {
            filter: Filter::default(),
            start: PageStart::Offset(offset),
            limit,
        }
    }
}

/// A page of an organization's connections.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionPage {
    /// Number of connections that match the filter, on all pages. 0 if the request started after a
    /// client id.
    pub count: u64,
    /// Connections on this page, ordered by client id.
    pub connections: Vec<Connection>,
}

/// A page of the connected clients of all organizations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientPage {
    /// Number of clients on all pages.
    pub count: u64,
    /// Clients on this page, ordered by organization and client id.
    pub clients: Vec<(Tenant, ClientId)>,
}
