//! Validated ids of clients, organizations and messages.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

/// Maximum length of a client id in bytes.
pub const MAX_CLIENT_ID_BYTES: usize = 255;
/// Maximum length of a message id in characters.
pub const MAX_MESSAGE_ID_CHARS: usize = 255;
/// Maximum length of an organization id in bytes.
const MAX_ORG_ID_BYTES: usize = 255;

/// The reason for which a text is not a valid id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// The id is empty or blank.
    #[error("it is empty")]
    Empty,
    /// The id is longer than the maximum length.
    #[error("it is longer than {0}")]
    TooLong(usize),
    /// The id contains this forbidden character. Topic separators and wildcards are forbidden,
    /// because they would give a client access to the topics of other clients. NUL is forbidden,
    /// because PostgreSQL cannot store NUL.
    #[error("it contains {0:?}")]
    ForbiddenChar(char),
}

/// The id of a client, which is the common name of its certificate. Client ids are compared byte
/// for byte.
///
/// A client id is one level of an MQTT topic. So a client id contains no topic separator and no
/// wildcard.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(Arc<str>);

impl ClientId {
    /// Validates a client id.
    ///
    /// # Errors
    /// If the id is empty, too long, or contains `/`, `+`, `#` or NUL.
    pub fn new(id: &str) -> Result<Self, InvalidId> {
        if id.is_empty() {
            return Err(InvalidId::Empty);
        }
        if id.len() > MAX_CLIENT_ID_BYTES {
            return Err(InvalidId::TooLong(MAX_CLIENT_ID_BYTES));
        }
        match id.chars().find(|c| matches!(c, '/' | '+' | '#' | '\0')) {
            Some(forbidden) => Err(InvalidId::ForbiddenChar(forbidden)),
            None => Ok(Self(id.into())),
        }
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A map with client ids as keys can be searched by text. Both types have the same hash.
impl Borrow<str> for ClientId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The id of an organization.
///
/// An `OrgId` is never blank. A connection without a tenant has no `OrgId`, so a query for an
/// organization cannot return such a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrgId(Arc<str>);

impl OrgId {
    /// Validates an organization id.
    ///
    /// # Errors
    /// If the id is blank, too long or contains NUL.
    pub fn new(id: &str) -> Result<Self, InvalidId> {
        if id.trim().is_empty() {
            return Err(InvalidId::Empty);
        }
        if id.len() > MAX_ORG_ID_BYTES {
            return Err(InvalidId::TooLong(MAX_ORG_ID_BYTES));
        }
        if id.contains('\0') {
            return Err(InvalidId::ForbiddenChar('\0'));
        }
        Ok(Self(id.into()))
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OrgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The id that the sender of a message gave to the message. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(Arc<str>);

impl MessageId {
    /// Validates a message id.
    ///
    /// # Errors
    /// If the id is empty, too long or contains NUL.
    pub fn new(id: &str) -> Result<Self, InvalidId> {
        if id.is_empty() {
            return Err(InvalidId::Empty);
        }
        if id.chars().count() > MAX_MESSAGE_ID_CHARS {
            return Err(InvalidId::TooLong(MAX_MESSAGE_ID_CHARS));
        }
        if id.contains('\0') {
            return Err(InvalidId::ForbiddenChar('\0'));
        }
        Ok(Self(id.into()))
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the id can be the id of a tracked message: a UUID of version 7 in lower case. The
    /// ids of all other messages that the service sends are UUIDs of version 4.
    #[must_use]
    pub fn may_be_tracked(&self) -> bool {
        let is_valid = |(index, byte): (usize, u8)| match index {
            8 | 13 | 18 | 23 => byte == b'-',
            14 => byte == b'7',
            _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        };
        self.0.len() == 36 && self.0.bytes().enumerate().all(is_valid)
    }
}

impl From<Uuid> for MessageId {
    fn from(id: Uuid) -> Self {
        Self(id.to_string().into())
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_id_with_separator_wildcard_nul_or_invalid_length_is_rejected() {
        for invalid in ["a/b", "+", "#", "a\0", "", &"x".repeat(256)] {
            assert!(ClientId::new(invalid).is_err(), "{invalid:?}");
        }
    }

    #[test]
    fn client_ids_are_compared_byte_for_byte() {
        let lowercase_id = ClientId::new("f8d7e0a1-5b0a-4c6e-9a43-6d1e0f0b8a11").unwrap();
        let uppercase_id = ClientId::new("F8D7E0A1-5B0A-4C6E-9A43-6D1E0F0B8A11").unwrap();
        assert_ne!(lowercase_id, uppercase_id);
        assert!(ClientId::new(&"x".repeat(255)).is_ok());
    }

    #[test]
    fn blank_org_id_is_rejected() {
        assert_eq!(OrgId::new("  "), Err(InvalidId::Empty));
        assert!(OrgId::new("10000").is_ok());
    }

    #[test]
    fn only_a_uuid_of_version_7_may_be_the_id_of_a_tracked_message() {
        let may_be_tracked = |id: &str| MessageId::new(id).unwrap().may_be_tracked();
        assert!(may_be_tracked("018f3c1e-7a2b-7c3d-8e4f-0123456789ab"));
        for other in [
            "018f3c1e-7a2b-4c3d-8e4f-0123456789ab",
            "018F3C1E-7A2B-7C3D-8E4F-0123456789AB",
            "018f3c1e7a2b7c3d8e4f0123456789ab",
            "018f3c1e-7a2b-7c3d-8e4f-0123456789a\u{e9}",
            "x",
        ] {
            assert!(!may_be_tracked(other), "{other}");
        }
    }

    #[test]
    fn message_id_length_is_counted_in_characters() {
        assert!(MessageId::new(&"é".repeat(255)).is_ok());
        assert!(MessageId::new(&"é".repeat(256)).is_err());
    }
}
