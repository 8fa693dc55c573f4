//! Messages that can never be processed, as an operator may look at them.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::domain::{ClientId, Timestamp};
use crate::protocol::{InboundMessage, Rejection};

/// Longest topic that is kept, in characters. MQTT allows 65,535 bytes.
const TOPIC_MAX_CHARS: usize = 1000;
const DETAIL_MAX_CHARS: usize = 1000;

/// A message that can never be processed, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetter {
    /// Whose topic it came on; none where that is no client's.
    pub client: Option<ClientId>,
    /// The topic.
    pub topic: String,
    /// The payload, or its beginning.
    pub payload: Bytes,
    /// The payload's size, before it was cut.
    pub size: u64,
    /// The SHA-256 of the whole payload, in hexadecimal digits.
    pub sha256: String,
    /// One of a fixed set of words.
    pub reason: String,
    /// What exactly was wrong.
    pub detail: String,
    /// When the broker had it.
    pub received: Timestamp,
}

impl DeadLetter {
    /// The letter that this message is.
    #[must_use]
    pub fn new(client: Option<ClientId>, message: &InboundMessage, why: &Rejection) -> Self {
        let message = message.clone().cut();
        Self {
            client,
            topic: storable(&message.topic, TOPIC_MAX_CHARS),
            size: message.size(),
            sha256: message.sha256(),
            payload: message.payload,
            reason: why.reason.to_owned(),
            detail: storable(&why.detail, DETAIL_MAX_CHARS),
            received: message.received,
        }
    }

    /// Whether all of it was kept, so that it can be processed again.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.size == self.payload.len() as u64
    }

    pub(super) fn client_name(&self) -> &str {
        self.client.as_ref().map_or("", ClientId::as_str)
    }

    /// Tells letters of one client apart. Of bounded length, whatever the topic.
    pub(super) fn fingerprint(&self) -> String {
        let both = format!("{}\n{}", self.sha256, self.topic);
        format!("{:x}", Sha256::digest(both))
    }
}

/// What both databases take, of bounded length.
fn storable(text: &str, most: usize) -> String {
    text.chars()
        .take(most)
        .map(|c| {
            if c == '\0' {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect()
}

/// A dead letter in the store.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredDeadLetter {
    /// Its number, by which an operator names it.
    pub id: i64,
    /// The message, when it last came, and why it was refused then.
    pub letter: DeadLetter,
    /// How often it came.
    pub times: u64,
    /// When it first came.
    pub first_received: Timestamp,
    /// When an operator asked for it to be processed again, if that is still to be done.
    pub replay_asked: Option<Timestamp>,
}

/// How many dead letters are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeadLetterLimits {
    /// Of one client.
    pub max_per_client: u32,
    /// In all: names of clients may be anybody's invention.
    pub max_total: u32,
}

/// Which dead letters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeadLetterFilter {
    /// Of this client only.
    pub client: Option<ClientId>,
    /// For this reason only.
    pub reason: Option<String>,
    /// That came last before this moment only.
    pub before: Option<Timestamp>,
    /// Those that wait to be processed again only.
    pub replay_asked: bool,
}
