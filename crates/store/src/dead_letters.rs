//! Dead letters: messages that can never be processed.

use async_trait::async_trait;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use domain::{ClientId, RejectReason, Timestamp};
use protocol::{InboundMessage, Rejection};

use crate::error::Result;

/// Maximum length of a stored topic. MQTT allows topics of up to 65,535 bytes.
const MAX_TOPIC_CHARS: usize = 1000;
/// Maximum length of a stored [`DeadLetter::detail`].
const MAX_DETAIL_CHARS: usize = 1000;

/// A message that can never be processed. The message is not stored yet.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetter {
    /// The client that the topic belongs to. `None` if the topic belongs to no client.
    pub client: Option<ClientId>,
    /// Topic of the message. A very long topic is truncated.
    pub topic: String,
    /// Payload of the message. A payload that is too large to store is truncated.
    pub payload: Bytes,
    /// Size of the complete payload in bytes.
    pub payload_size: u64,
    /// SHA-256 of the complete payload, in hexadecimal.
    pub sha256: String,
    /// Why the message was rejected.
    pub reason: RejectReason,
    /// What is wrong with the message.
    pub detail: String,
    /// Receive time of the message.
    pub received_at: Timestamp,
}

impl DeadLetter {
    /// Creates a dead letter from a rejected message.
    #[must_use]
    pub fn new(client: Option<ClientId>, message: &InboundMessage, rejection: &Rejection) -> Self {
        let message = message.clone().with_truncated_payload();
        Self {
            client,
            topic: storable_text(&message.topic, MAX_TOPIC_CHARS),
            payload_size: message.payload_size_bytes(),
            sha256: message.payload_sha256(),
            payload: message.payload,
            reason: rejection.reason,
            detail: storable_text(&rejection.detail, MAX_DETAIL_CHARS),
            received_at: message.received_at,
        }
    }

    /// Returns the value of the column `client_id`. The value is empty if the topic belongs to no
    /// client.
    #[must_use]
    pub fn client_id_column(&self) -> &str {
        self.client.as_ref().map_or("", ClientId::as_str)
    }

    /// Returns a hash of topic and payload. Equal messages of a client have equal fingerprints.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let content = format!("{}\n{}", self.sha256, self.topic);
        format!("{:x}", Sha256::digest(content))
    }
}

/// Truncates a text. Replaces NUL characters, because PostgreSQL cannot store them.
fn storable_text(text: &str, max_chars: usize) -> String {
    text.chars()
        .take(max_chars)
        .map(|c| {
            if c == '\0' {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect()
}

/// A dead letter in the database.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredDeadLetter {
    /// Number that operator commands use to select the dead letter.
    pub id: i64,
    /// The client that the topic belongs to. `None` if the topic belongs to no client.
    pub client: Option<ClientId>,
    /// Topic of the message. A very long topic is truncated.
    pub topic: String,
    /// Payload of the message. A payload that is too large to store is truncated.
    /// [`DeadLetterRepository::list_dead_letters`] returns an empty payload.
    pub payload: Bytes,
    /// Size of the complete payload in bytes.
    pub payload_size: u64,
    /// SHA-256 of the complete payload, in hexadecimal.
    pub sha256: String,
    /// Reason of the latest rejection of the message. The type is `String`, because another version
    /// of the program can have stored a reason that this version does not define.
    pub reason: String,
    /// Details of the latest rejection: what was wrong with the message.
    pub detail: String,
    /// Number of times that the message was received.
    pub occurrences: u64,
    /// Time at which the message was first received.
    pub first_received: Timestamp,
    /// Time at which the message was last received.
    pub last_received: Timestamp,
    /// Time at which an operator requested a replay. `None` if no replay is pending.
    pub replay_requested_at: Option<Timestamp>,
}

impl StoredDeadLetter {
    /// Returns whether the stored payload is complete. Only a complete message can be replayed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.payload_size == self.payload.len() as u64
    }
}

/// Limit on the number of stored dead letters that each batch enforces.
/// [`enforce_dead_letter_limit`](crate::enforce_dead_letter_limit) enforces the limit on the dead
/// letters of all clients together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeadLetterLimits {
    /// Maximum number of dead letters per client.
    pub max_dead_letters_per_client: u32,
}

/// The number of dead letters of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterCount {
    /// Value of the column `client_id`. Empty for dead letters that belong to no client.
    pub client_id: String,
    /// Number of dead letters.
    pub dead_letters: u64,
}

/// Conditions that select dead letters. An empty filter selects all dead letters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeadLetterFilter {
    /// Selects dead letters of this client.
    pub client: Option<ClientId>,
    /// Selects dead letters with this reason.
    pub reason: Option<RejectReason>,
    /// Selects dead letters that were last received before this time.
    pub received_before: Option<Timestamp>,
    /// Selects only dead letters with a pending replay request.
    pub replay_requested: bool,
}

/// Reads, replays and deletes dead letters, for the recorder, the retention job and operator
/// commands. Only a [`PresenceBatch`](crate::PresenceBatch) inserts dead letters.
#[async_trait]
pub trait DeadLetterRepository: Send + Sync + 'static {
    /// Lists dead letters without their payloads, in descending order of their ids.
    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>>;

    /// Finds a dead letter with its payload.
    async fn find_dead_letter(&self, dead_letter_id: i64) -> Result<Option<StoredDeadLetter>>;

    /// Requests the replay of a dead letter. Returns false if the dead letter does not exist.
    async fn request_replay(&self, dead_letter_id: i64, now: Timestamp) -> Result<bool>;

    /// Deletes a dead letter after its replay. Returns whether the dead letter was deleted.
    ///
    /// If the stored number of occurrences differs from `occurrences`, the message was rejected
    /// again. The dead letter is then not deleted.
    async fn finish_replay(&self, dead_letter_id: i64, occurrences: u64) -> Result<bool>;

    /// Deletes at most `limit` dead letters that match the filter. Returns the number of deleted dead
    /// letters. If the number is less than `limit`, no dead letter matches any more.
    async fn purge_dead_letters(&self, filter: &DeadLetterFilter, limit: u32) -> Result<u64>;

    /// Counts the dead letters of each client, in ascending order of the client ids. Starts after the
    /// client id `after_client`. `None` starts at the first client. `limit` is the maximum number of
    /// clients.
    async fn count_dead_letters_by_client(
        &self,
        after_client: Option<&str>,
        limit: u32,
    ) -> Result<Vec<DeadLetterCount>>;

    /// Deletes the oldest dead letters of each of these clients, so that at most
    /// `max_dead_letters_per_client` remain. Deletes at most `limit` dead letters in total. Returns
    /// the number of deleted dead letters.
    async fn trim_dead_letters(
        &self,
        client_ids: &[&str],
        max_dead_letters_per_client: u64,
        limit: u32,
    ) -> Result<u64>;

    /// Deletes the `limit` oldest dead letters of all clients. Returns the number of deleted dead
    /// letters.
    async fn delete_oldest_dead_letters(&self, limit: u32) -> Result<u64>;
}
