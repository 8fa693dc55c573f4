//! A message as the broker handed it over, and why one cannot be used.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::domain::Timestamp;

/// What is kept of a message that is too large to keep whole.
pub const TRUNCATE_TO_BYTES: usize = 64 * 1024;

/// A message as it came: not parsed, so that taking it in cannot fail.
#[derive(Debug, Clone)]
pub struct InboundMessage {
    /// The topic it was published on; names the sender.
    pub topic: String,
    /// Its bytes; only their beginning if it was cut.
    pub payload: Bytes,
    /// The broker had kept it, and sent it because of our subscription: nobody said it now.
    pub replayed: bool,
    /// An operator wants it processed again: it says nothing about now either.
    pub again: bool,
    /// When the broker had it.
    pub received: Timestamp,
    /// What it was before it was cut.
    pub cut: Option<Truncated>,
}

/// What a message was before it was cut: enough to see what it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncated {
    /// Its size in bytes.
    pub size: u64,
    /// The SHA-256 of all of it, in hexadecimal digits.
    pub sha256: String,
}

impl InboundMessage {
    /// Cuts it to what is kept, if it is larger than that.
    #[must_use]
    pub fn cut(mut self) -> Self {
        if self.cut.is_none() && self.payload.len() > TRUNCATE_TO_BYTES {
            self.cut = Some(Truncated {
                size: self.payload.len() as u64,
                sha256: self.sha256(),
            });
            // A copy, so that the whole is let go of.
            self.payload = Bytes::copy_from_slice(&self.payload[..TRUNCATE_TO_BYTES]);
        }
        self
    }

    /// Its size before it was cut.
    #[must_use]
    pub fn size(&self) -> u64 {
        match &self.cut {
            Some(cut) => cut.size,
            None => self.payload.len() as u64,
        }
    }

    /// The SHA-256 of all of it, in hexadecimal digits.
    #[must_use]
    pub fn sha256(&self) -> String {
        match &self.cut {
            Some(cut) => cut.sha256.clone(),
            None => format!("{:x}", Sha256::digest(&self.payload)),
        }
    }
}

/// Why a message can never be processed. The reason is one of few words, because it is a metric's
/// label; the detail is for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Rejection {
    /// One of a fixed set of words.
    pub reason: &'static str,
    /// What exactly was wrong. Never the payload itself.
    pub detail: String,
}

impl Rejection {
    /// A rejection for that reason.
    #[must_use]
    pub fn new(reason: &'static str, detail: impl Into<String>) -> Self {
        Self {
            reason,
            detail: detail.into(),
        }
    }

    /// It has a shape that no message has.
    #[must_use]
    pub fn wrong_shape(detail: impl Into<String>) -> Self {
        Self::new("wrong_shape", detail)
    }

    /// Nobody has this topic.
    #[must_use]
    pub fn unknown_topic() -> Self {
        Self::new("unknown_topic", "no client publishes on this topic")
    }

    /// It is larger than any honest message.
    #[must_use]
    pub fn too_large(size: u64, most: usize) -> Self {
        Self::new("too_large", format!("{size} bytes, over {most}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_message_is_cut_once_and_tells_what_it_was() {
        let whole = InboundMessage {
            topic: "t".into(),
            payload: Bytes::from(vec![b'x'; TRUNCATE_TO_BYTES + 1]),
            replayed: false,
            again: false,
            received: Timestamp::UNIX_EPOCH,
            cut: None,
        };
        let hash = whole.sha256();
        let cut = whole.clone().cut().cut();
        assert_eq!(cut.payload.len(), TRUNCATE_TO_BYTES);
        assert_eq!(
            (cut.size(), cut.sha256()),
            (TRUNCATE_TO_BYTES as u64 + 1, hash)
        );
        let mut small = whole;
        small.payload.truncate(TRUNCATE_TO_BYTES);
        assert_eq!(small.cut().cut, None);
    }
}
