//! Names of clients, organisations and messages, checked once where they enter.

use std::fmt;
use std::sync::Arc;

/// Longest client id in bytes.
pub const CLIENT_ID_MAX_BYTES: usize = 255;
/// Longest message id in characters.
pub const MESSAGE_ID_MAX_CHARS: usize = 255;
/// Longest organisation id in bytes, on the way in.
const ORG_ID_MAX_BYTES: usize = 255;

/// Why a name was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// Nothing there.
    #[error("it is empty")]
    Empty,
    /// Longer than any store would keep.
    #[error("it is longer than {0}")]
    TooLong(usize),
    /// Holds a character that would let it reach another client's topics, or that a store refuses.
    #[error("it holds {0:?}")]
    Character(char),
}

/// The common name of a client's certificate, compared byte for byte.
///
/// It is one level of an MQTT topic, so it can hold neither a separator nor a wildcard.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(Arc<str>);

impl ClientId {
    /// Takes a name in, or says why not.
    ///
    /// # Errors
    /// When it is empty, too long, or holds `/`, `+`, `#` or NUL.
    pub fn new(name: &str) -> Result<Self, InvalidId> {
        if name.is_empty() {
            return Err(InvalidId::Empty);
        }
        if name.len() > CLIENT_ID_MAX_BYTES {
            return Err(InvalidId::TooLong(CLIENT_ID_MAX_BYTES));
        }
        match name.chars().find(|c| matches!(c, '/' | '+' | '#' | '\0')) {
            Some(bad) => Err(InvalidId::Character(bad)),
            None => Ok(Self(name.into())),
        }
    }

    /// The name as it came.
    #[must_use]
    pub fn as_str(&self) -> &str {
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

/// An organisation. Never empty: a connection without one has no `OrgId` at all, so no query that
/// takes one can return it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrgId(Arc<str>);

impl OrgId {
    /// Takes a name in, or says why not.
    ///
    /// # Errors
    /// When it is blank, too long or holds NUL.
    pub fn new(name: &str) -> Result<Self, InvalidId> {
        if name.trim().is_empty() {
            return Err(InvalidId::Empty);
        }
        if name.len() > ORG_ID_MAX_BYTES {
            return Err(InvalidId::TooLong(ORG_ID_MAX_BYTES));
        }
        if name.contains('\0') {
            return Err(InvalidId::Character('\0'));
        }
        Ok(Self(name.into()))
    }

    /// The name as it came.
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

/// The id that a sender gave its message. Never empty: an empty one names nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MessageId(Arc<str>);

impl MessageId {
    /// Takes an id in, or says why not.
    ///
    /// # Errors
    /// When it is empty, too long or holds NUL.
    pub fn new(id: &str) -> Result<Self, InvalidId> {
        if id.is_empty() {
            return Err(InvalidId::Empty);
        }
        if id.chars().count() > MESSAGE_ID_MAX_CHARS {
            return Err(InvalidId::TooLong(MESSAGE_ID_MAX_CHARS));
        }
        if id.contains('\0') {
            return Err(InvalidId::Character('\0'));
        }
        Ok(Self(id.into()))
    }

    /// The id as it came.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
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
    fn a_client_id_that_could_reach_other_topics_is_refused() {
        for bad in ["a/b", "+", "#", "a\0", "", &"x".repeat(256)] {
            assert!(ClientId::new(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_client_id_is_compared_byte_for_byte() {
        let lower = ClientId::new("f8d7e0a1-5b0a-4c6e-9a43-6d1e0f0b8a11").unwrap();
        let upper = ClientId::new("F8D7E0A1-5B0A-4C6E-9A43-6D1E0F0B8A11").unwrap();
        assert_ne!(lower, upper);
        assert!(ClientId::new(&"x".repeat(255)).is_ok());
    }

    #[test]
    fn a_blank_organisation_is_none_at_all() {
        assert_eq!(OrgId::new("  "), Err(InvalidId::Empty));
        assert!(OrgId::new("10000").is_ok());
    }

    #[test]
    fn a_message_id_is_counted_in_characters() {
        assert!(MessageId::new(&"é".repeat(255)).is_ok());
        assert!(MessageId::new(&"é".repeat(256)).is_err());
    }
}
