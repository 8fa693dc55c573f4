//! Messages from clients, before decoding.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::domain::Timestamp;

/// Number of payload bytes that remain after truncation.
pub const TRUNCATE_TO_BYTES: usize = 64 * 1024;

/// A message from the broker. Its payload is not decoded, so receiving a message cannot fail.
#[derive(Debug, Clone)]
pub struct InboundMessage {
    /// The MQTT topic, which identifies the client that published the message.
    pub topic: String,
    /// The payload; only its first [`TRUNCATE_TO_BYTES`] bytes if it was truncated.
    pub payload: Bytes,
    /// Whether the broker replayed a retained message because of a new subscription. The client
    /// may have published it long ago.
    pub retained: bool,
    /// Whether an operator replays a dead letter. The client may have published it long ago.
    pub operator_replay: bool,
    /// When the broker or the service received the message.
    pub received_at: Timestamp,
    /// Size and hash of the complete payload, if the payload was truncated.
    pub truncated: Option<Truncated>,
}

/// Size and hash of a payload before it was truncated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncated {
    /// Size of the complete payload in bytes.
    pub size: u64,
    /// SHA-256 of the complete payload, in hexadecimal.
    pub sha256: String,
}

impl InboundMessage {
    /// Truncates a payload that is larger than [`TRUNCATE_TO_BYTES`].
    #[must_use]
    pub fn with_truncated_payload(mut self) -> Self {
        if self.truncated.is_none() && self.payload.len() > TRUNCATE_TO_BYTES {
            self.truncated = Some(Truncated {
                size: self.payload.len() as u64,
                sha256: self.sha256(),
            });
            // A slice of `Bytes` would keep the complete payload in memory.
            self.payload = Bytes::copy_from_slice(&self.payload[..TRUNCATE_TO_BYTES]);
        }
        self
    }

    /// Size of the complete payload in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        match &self.truncated {
            Some(complete) => complete.size,
            None => self.payload.len() as u64,
        }
    }

    /// SHA-256 of the complete payload, in hexadecimal.
    #[must_use]
    pub fn sha256(&self) -> String {
        match &self.truncated {
            Some(complete) => complete.sha256.clone(),
            None => format!("{:x}", Sha256::digest(&self.payload)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_message_keeps_the_size_and_hash_of_the_complete_payload() {
        let message = InboundMessage {
            topic: "t".into(),
            payload: Bytes::from(vec![b'x'; TRUNCATE_TO_BYTES + 1]),
            retained: false,
            operator_replay: false,
            received_at: Timestamp::UNIX_EPOCH,
            truncated: None,
        };
        let sha256 = message.sha256();
        let once = message.clone().with_truncated_payload();
        let twice = once.clone().with_truncated_payload();
        for truncated in [once, twice] {
            assert_eq!(truncated.payload.len(), TRUNCATE_TO_BYTES);
            assert_eq!(truncated.size(), TRUNCATE_TO_BYTES as u64 + 1);
            assert_eq!(truncated.sha256(), sha256);
        }
        let mut small = message;
        small.payload.truncate(TRUNCATE_TO_BYTES);
        assert_eq!(small.with_truncated_payload().truncated, None);
    }
}
