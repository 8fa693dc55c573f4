//! Records of tracked messages.
//!
//! The state of a message only moves forward: each operation changes only messages in a state from which
//! the new state can be reached. The event of a change is written in the same transaction.

use std::time::Duration;

use async_trait::async_trait;

use domain::{ClientId, MessageFailure, MessageId, MessageState, OrgId, Tenant, Timestamp};

use crate::error::Result;
use crate::idempotency::IdempotentRequest;

/// Maximum size of the stored content of an answer, as JSON text.
pub const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// A message to store before it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMessage {
    /// Id of the message.
    pub id: MessageId,
    /// Organization of the sender, which sees the message.
    pub sender: Tenant,
    /// Name of the caller that sent the message.
    pub caller: String,
    /// Client that receives the message.
    pub client_id: ClientId,
    /// Organization of the client. Differs from the sender's only for a Satellite server.
    pub client_org: OrgId,
    /// Directive of the message.
    pub directive: String,
    /// Time at which the message was accepted.
    pub created_at: Timestamp,
}

/// A stored message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackedMessage {
    /// Id of the message.
    pub id: MessageId,
    /// Client that receives the message.
    pub client_id: ClientId,
    /// Name of the caller that sent the message.
    pub caller: String,
    /// Directive of the message.
    pub directive: String,
    /// Present state.
    pub state: MessageState,
    /// Why the message failed. The type is `String`, because another version of the program can have
    /// stored a reason that this version does not define.
    pub reason: Option<String>,
    /// Bulk that the message belongs to.
    pub bulk_id: Option<String>,
    /// Time at which the message was accepted.
    pub created_at: Timestamp,
    /// Time at which the message was first passed to the connection to the broker.
    pub sent_at: Option<Timestamp>,
    /// Time at which the broker acknowledged the message.
    pub acknowledged_at: Option<Timestamp>,
    /// Receive time of the first answer.
    pub answered_at: Option<Timestamp>,
    /// Time at which the message failed, expired or was cancelled.
    pub ended_at: Option<Timestamp>,
    /// Time at which a queued message expires.
    pub expires_at: Option<Timestamp>,
    /// Number of times that the message was passed to the connection to the broker.
    pub attempts: u64,
    /// Whether the client can have received the message more than once, or after it was shown as failed.
    pub may_be_duplicate: bool,
    /// The first answer. `None` if there is no answer, and in lists.
    pub answer: Option<AnswerContent>,
    /// Number of answers.
    pub answer_count: u64,
}

/// The content of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerContent {
    /// JSON text, at most [`MAX_ANSWER_BYTES`].
    pub json: String,
    /// Whether `json` is only the start of the text.
    pub is_truncated: bool,
}

/// The answers of a client to one message, in a batch of the recorder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageAnswer {
    /// Id of the message that the client answered.
    pub message_id: MessageId,
    /// Client that answered. Only the client that the message was sent to can change its state.
    pub client_id: ClientId,
    /// Whether the first answer is a rejection of the message.
    pub is_rejection: bool,
    /// Content of the first answer.
    pub content: AnswerContent,
    /// Receive time of the first answer.
    pub received_at: Timestamp,
    /// Number of answers.
    pub count: u32,
}

impl MessageAnswer {
    /// Returns the state of the message after its first answer.
    #[must_use]
    pub fn state(&self) -> MessageState {
        if self.is_rejection {
            MessageState::Rejected
        } else {
            MessageState::Answered
        }
    }
}

/// The result of an attempt to send a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOutcome {
    /// The broker acknowledged the message.
    Acknowledged,
    /// The message was not delivered.
    Failed(MessageFailure),
}

/// The result of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelOutcome {
    /// The message is cancelled.
    Cancelled,
    /// The message is no longer queued, and has this state.
    NotQueued(MessageState),
    /// The organization has no such message.
    NotFound,
}

/// Conditions that select messages. An empty filter selects all messages of the organization.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageFilter {
    /// Selects messages to this client.
    pub client_id: Option<ClientId>,
    /// Selects messages in this state.
    pub state: Option<MessageState>,
    /// Selects messages with this directive.
    pub directive: Option<String>,
    /// Selects messages that were accepted after this time.
    pub created_after: Option<Timestamp>,
}

/// A page of messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessagePage {
    /// The messages, newest first.
    pub messages: Vec<TrackedMessage>,
    /// The next page starts after this message. `None` on the last page.
    pub next_after: Option<MessageId>,
}

/// Stores and reads tracked messages.
#[async_trait]
pub trait MessageRepository: Send + Sync + 'static {
    /// Stores a message in the state `sending`. The caller must report the result with
    /// [`Self::store_send_outcome`]. If it does not do so within `lease`,
    /// [`Self::fail_expired_sends`] ends the attempt.
    async fn insert_sending(&self, message: &NewMessage, lease: Duration) -> Result<()>;

    /// Like [`Self::insert_sending`], but also stores the key of the request in the same transaction.
    /// Returns false, and stores nothing, if the key is already in use.
    async fn insert_sending_once(
        &self,
        message: &NewMessage,
        lease: Duration,
        request: &IdempotentRequest,
    ) -> Result<bool>;

    /// Stores the result of an attempt to send a message. Returns the new state, or `None` if the message
    /// has a state that the result does not change.
    ///
    /// An acknowledgement also changes a message that has failed because the acknowledgement was late.
    async fn store_send_outcome(
        &self,
        id: &MessageId,
        outcome: SendOutcome,
        at: Timestamp,
    ) -> Result<Option<MessageState>>;

    /// Finds a message of an organization, with its answer.
    async fn find_message(&self, org: &OrgId, id: &MessageId) -> Result<Option<TrackedMessage>>;

    /// Lists messages of an organization without their answers, newest first. Starts after the message
    /// `after`.
    ///
    /// A call examines a limited number of messages. If only few of them match the filter, the page has
    /// fewer than `limit` messages although it is not the last page.
    async fn list_messages(
        &self,
        org: &OrgId,
        filter: &MessageFilter,
        after: Option<&MessageId>,
        limit: u32,
    ) -> Result<MessagePage>;

    /// Cancels a queued message of an organization.
    async fn cancel_message(
        &self,
        org: &OrgId,
        id: &MessageId,
        at: Timestamp,
    ) -> Result<CancelOutcome>;

    /// Ends at most `limit` attempts whose lease has expired: the process that sent the message has ended.
    /// Returns the number of changed messages.
    async fn fail_expired_sends(&self, at: Timestamp, limit: u32) -> Result<u64>;

    /// Deletes at most `limit` messages whose latest final state was reached before `time`. Returns the
    /// number of deleted messages.
    async fn delete_messages_before(&self, time: Timestamp, limit: u32) -> Result<u64>;

    /// Deletes the oldest messages in a final state of organizations with more than `max_messages`
    /// messages. Deletes at most `limit` messages of one organization. Returns the number of deleted
    /// messages. 0 means that no organization has more messages, or that none of them can be deleted.
    async fn trim_messages(&self, max_messages: u64, limit: u32) -> Result<u64>;
}
