//! Which of an organisation's connections are wanted, and in which pages.

use crate::domain::{ClientId, Connection, Tenant};

/// Only those that all of this is true of. Empty: everybody.
///
/// WriteOutcome as they are compared: see each field's constructor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Has a worker of this name; `-` is written for `_`.
    pub(super) dispatchers: Vec<String>,
    /// Has this tag with this value.
    pub(super) tags: Vec<(String, String)>,
    /// Has this fact with this value, or with a list that holds it: in lower case, a UUID without its
    /// dashes.
    pub(super) facts: Vec<(String, String)>,
    /// Its client id begins like this, or its FQDN does in lower case.
    pub(super) beginnings: Vec<String>,
}

impl Filter {
    /// With a worker of this name, in either spelling.
    pub fn dispatcher(&mut self, name: &str) {
        self.dispatchers.push(name.replace('_', "-"));
    }

    /// With this tag.
    pub fn tag(&mut self, key: &str, value: &str) {
        self.tags.push((key.to_owned(), value.to_owned()));
    }

    /// With this fact. Letters' case does not matter, nor do the dashes of a UUID.
    pub fn fact(&mut self, key: &str, value: &str) {
        let lower = value.to_ascii_lowercase();
        let bare = lower.replace('-', "");
        // With its four dashes, or without any.
        let is_uuid = matches!(lower.len(), 32 | 36) && Self::is_bare_uuid(&bare);
        let value = if is_uuid { bare } else { lower };
        self.facts.push((key.to_owned(), value));
    }

    /// With a client id or an FQDN that begins like this.
    pub fn beginning(&mut self, text: &str) {
        self.beginnings.push(text.to_owned());
    }

    /// Whether it lets everybody through.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it is a UUID without its dashes.
    pub(super) fn is_bare_uuid(text: &str) -> bool {
        text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// The first text after all that begin like this, byte for byte.
    pub(super) fn after(beginning: &str) -> String {
        format!("{beginning}{}", char::MAX)
    }
}

/// Where a page begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageStart {
    /// After so many. The page comes with how many there are in all.
    Offset(u64),
    /// After the one of this name, or where it would stand; `""` is before everybody. Costs the same
    /// wherever that is; nobody is counted.
    After(String),
}

/// A page of an organisation's connections that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// Of these.
    pub filter: Filter,
    /// From here.
    pub start: PageStart,
    /// At most so many.
    pub limit: u64,
}

impl PageRequest {
    /// Of everybody.
    #[must_use]
    pub fn page(offset: u64, limit: u64) -> Self {
        Self {
            filter: Filter::default(),
            start: PageStart::Offset(offset),
            limit,
        }
    }
}

/// A page of an organisation's connections.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionPage {
    /// How many there are in all, whatever the page: where the page starts at an offset. Otherwise 0.
    pub count: u64,
    /// This page, ordered by client id.
    pub connections: Vec<Connection>,
}

/// A page of everybody who belongs to an organisation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientPage {
    /// How many there are in all, whatever the page.
    pub count: u64,
    /// This page, ordered by organisation and client id.
    pub clients: Vec<(Tenant, ClientId)>,
}
