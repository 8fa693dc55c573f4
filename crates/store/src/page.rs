//! Types of paged lists: filter, requested page and returned page.

use domain::{ClientId, Connection, Tenant, Timestamp};

/// Conditions on a connection. A connection matches the filter if it meets all conditions. An empty
/// filter matches every connection.
///
/// The values are stored in the form in which the database compares them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectionFilter {
    /// Names of the required dispatchers, with `-` in place of `_`.
    pub dispatchers: Vec<String>,
    /// Keys and values of the required tags.
    pub tags: Vec<(String, String)>,
    /// Keys and values of the required facts. Values are in lower case, and UUIDs have no dashes.
    pub facts: Vec<(String, String)>,
    /// Required prefixes. Each prefix applies to the client id or the FQDN.
    pub prefixes: Vec<String>,
    /// The client was last seen after this time. The stored time can be some minutes too early.
    pub seen_after: Option<Timestamp>,
    /// The client was last seen before this time.
    pub seen_before: Option<Timestamp>,
}

impl ConnectionFilter {
    /// Requires a dispatcher. The filter treats `-` and `_` in the name as equal.
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
        let lowercase_value = value.to_ascii_lowercase();
        let without_dashes = lowercase_value.replace('-', "");
        // A UUID has 32 characters without dashes and 36 with dashes.
        let is_uuid = matches!(lowercase_value.len(), 32 | 36)
            && Self::is_uuid_without_dashes(&without_dashes);
        let value = if is_uuid {
            without_dashes
        } else {
            lowercase_value
        };
        self.facts.push((key.to_owned(), value));
    }

    /// Requires a client id or an FQDN with this prefix. Ignores the letter case of the FQDN.
    pub fn require_prefix(&mut self, prefix: &str) {
        self.prefixes.push(prefix.to_owned());
    }

    /// Requires that the client was last seen after this time. If called repeatedly, the latest time counts.
    pub fn require_seen_after(&mut self, time: Timestamp) {
        self.seen_after = self.seen_after.max(Some(time));
    }

    /// Requires that the client was last seen before this time. If called repeatedly, the earliest time
    /// counts.
    pub fn require_seen_before(&mut self, time: Timestamp) {
        self.seen_before = Some(self.seen_before.map_or(time, |earlier| earlier.min(time)));
    }

    /// Returns whether the filter has no conditions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the text has the form of a UUID without dashes.
    #[must_use]
    pub fn is_uuid_without_dashes(text: &str) -> bool {
        text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// Returns a text that is greater than every text with this prefix, compared byte by byte.
    #[must_use]
    pub fn end_of_prefix_range(prefix: &str) -> String {
        format!("{prefix}{}", char::MAX)
    }
}

/// Maximum number of matches of a filter that are counted. Counting more would take longer than reading the
/// page.
pub const MAX_FILTERED_COUNT: u64 = 10_000;

/// Start of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageStart {
    /// Skips this number of connections. The page has the total count.
    Offset(u64),
    /// Starts after this client id. A client with this id need not exist. `""` starts at the first
    /// connection. The query takes equally long for every position. The page has no total count.
    After(String),
}

/// A request for a page of an organization's connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// Conditions that select the connections.
    pub filter: ConnectionFilter,
    /// Start of the page.
    pub start: PageStart,
    /// Maximum number of connections on the page.
    pub limit: u64,
}

impl PageRequest {
    /// Creates a request without a filter. The page starts at `offset`.
    #[must_use]
    pub fn at_offset(offset: u64, limit: u64) -> Self {
        Self {
            filter: ConnectionFilter::default(),
            start: PageStart::Offset(offset),
            limit,
        }
    }
}

/// A page of an organization's connections.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionPage {
    /// Number of connections that match the filter, on all pages. With a filter, a number above
    /// [`MAX_FILTERED_COUNT`] means that there are more than [`MAX_FILTERED_COUNT`] matches. 0 if the
    /// request has [`PageStart::After`].
    pub total_count: u64,
    /// Connections on this page, ordered by client id.
    pub connections: Vec<Connection>,
}

/// A page of the connected clients of all organizations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientPage {
    /// Number of clients on all pages.
    pub total_count: u64,
    /// Clients on this page, ordered by organization and client id.
    pub clients: Vec<(Tenant, ClientId)>,
}
