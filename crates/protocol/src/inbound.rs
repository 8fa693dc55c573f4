//! Messages from clients, before decoding.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use domain::{IngestStamp, Timestamp};

/// Number of payload bytes that remain after a payload was truncated.
pub const TRUNCATED_PAYLOAD_BYTES: usize = 64 * 1024;

/// A message from the broker, with a payload that is not decoded yet.
#[derive(Debug, Clone)]
pub struct InboundMessage {
    /// The MQTT topic, which identifies the client that published the message.
    pub topic: String,
    /// The payload. A truncated payload contains only the first [`TRUNCATED_PAYLOAD_BYTES`] bytes.
    pub payload: Bytes,
    /// Whether this is a retained message that the broker delivered because of a new subscription.
    /// The client may have published the message long ago.
    pub retained: bool,
    /// Whether the message is a dead letter that an operator replays. The client may have published
    /// the message long ago.
    pub is_operator_replay: bool,
    /// Whether the broker published the message as a last will. `None` if this is unknown: only the
    /// embedded broker tells it.
    pub is_last_will: Option<bool>,
    /// Whether the message is the first one of a connection that replaced another connection of the client.
    /// Only the embedded broker knows.
    pub is_takeover: bool,
    /// Time at which the broker or the service received the message.
    pub received_at: Timestamp,
    /// Order among the messages of the same session at an external broker. `None` if the message
    /// did not pass through Kafka, or if `ingest` had no epoch.
    pub ingest_stamp: Option<IngestStamp>,
    /// Size and hash of the complete payload. `None` if the payload was not truncated.
    pub truncated_from: Option<OriginalPayload>,
}

/// Size and hash of a payload before it was truncated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginalPayload {
    /// Size of the complete payload in bytes.
    pub size_bytes: u64,
    /// SHA-256 of the complete payload, in hexadecimal.
    pub sha256: String,
}

impl InboundMessage {
    /// Returns the message with at most [`TRUNCATED_PAYLOAD_BYTES`] bytes of its payload.
    #[must_use]
    pub fn with_truncated_payload(mut self) -> Self {
        if self.truncated_from.is_none() && self.payload.len() > TRUNCATED_PAYLOAD_BYTES {
            self.truncated_from = Some(OriginalPayload {
                size_bytes: self.payload.len() as u64,
                sha256: self.payload_sha256(),
            });
            // The bytes are copied, because a slice of `Bytes` would keep the complete payload in
            // memory.
            self.payload = Bytes::copy_from_slice(&self.payload[..TRUNCATED_PAYLOAD_BYTES]);
        }
        self
    }

    /// Returns the size of the complete payload in bytes.
    #[must_use]
    pub fn payload_size_bytes(&self) -> u64 {
        match &self.truncated_from {
            Some(original) => original.size_bytes,
            None => self.payload.len() as u64,
        }
    }

    /// Returns the SHA-256 of the complete payload, in hexadecimal.
    #[must_use]
    pub fn payload_sha256(&self) -> String {
        match &self.truncated_from {
            Some(original) => original.sha256.clone(),
            None => format!("{:x}", Sha256::digest(&self.payload)),
        }
    }
}

/// Truncates a payload that arrives in parts, so that the complete payload is never in memory.
#[derive(Debug, Default)]
pub struct PayloadTruncator {
    start: Vec<u8>,
    size_bytes: u64,
    hasher: Sha256,
}

impl PayloadTruncator {
    /// Adds the next bytes of the payload.
    pub fn append(&mut self, bytes: &[u8]) {
        let missing_len = TRUNCATED_PAYLOAD_BYTES - self.start.len();
        self.start
            .extend_from_slice(&bytes[..bytes.len().min(missing_len)]);
        self.size_bytes += bytes.len() as u64;
        self.hasher.update(bytes);
    }

    /// Returns the first [`TRUNCATED_PAYLOAD_BYTES`] bytes, and the size and hash of all bytes.
    #[must_use]
    pub fn finish(self) -> (Bytes, OriginalPayload) {
        let original = OriginalPayload {
            size_bytes: self.size_bytes,
            sha256: format!("{:x}", self.hasher.finalize()),
        };
        (self.start.into(), original)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_that_arrives_in_parts_is_truncated_like_a_complete_payload() {
        let payload: Vec<u8> = (0..=255)
            .cycle()
            .take(TRUNCATED_PAYLOAD_BYTES * 2)
            .collect();
        let mut truncator = PayloadTruncator::default();
        for part in payload.chunks(TRUNCATED_PAYLOAD_BYTES / 3) {
            truncator.append(part);
        }
        let (start, original) = truncator.finish();
        assert_eq!(start, payload[..TRUNCATED_PAYLOAD_BYTES]);
        assert_eq!(original.size_bytes, payload.len() as u64);
        assert_eq!(original.sha256, format!("{:x}", Sha256::digest(&payload)));
    }

    #[test]
    fn truncated_message_keeps_the_size_and_hash_of_the_complete_payload() {
        let message = InboundMessage {
            topic: "t".into(),
            payload: Bytes::from(vec![b'x'; TRUNCATED_PAYLOAD_BYTES + 1]),
            retained: false,
            is_operator_replay: false,
            is_last_will: None,
            is_takeover: false,
            received_at: Timestamp::UNIX_EPOCH,
            ingest_stamp: None,
            truncated_from: None,
        };
        let sha256 = message.payload_sha256();
        let truncated_once = message.clone().with_truncated_payload();
        let truncated_twice = truncated_once.clone().with_truncated_payload();
        for truncated in [truncated_once, truncated_twice] {
            assert_eq!(truncated.payload.len(), TRUNCATED_PAYLOAD_BYTES);
            assert_eq!(
                truncated.payload_size_bytes(),
                TRUNCATED_PAYLOAD_BYTES as u64 + 1
            );
            assert_eq!(truncated.payload_sha256(), sha256);
        }
        let mut small_message = message;
        small_message.payload.truncate(TRUNCATED_PAYLOAD_BYTES);
        assert_eq!(small_message.with_truncated_payload().truncated_from, None);
    }
}
