//! Idempotency keys: a repeated request gets the response to the first one.

use std::time::Duration;

use async_trait::async_trait;

use domain::{MessageId, OrgId};

use crate::error::Result;

/// A key of a caller. Other callers and organizations can use the same text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Organization of the caller.
    pub org: OrgId,
    /// The caller within the organization.
    pub caller: String,
    /// Text of the header `Idempotency-Key`.
    pub key: String,
}

/// A request with a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotentRequest {
    /// The key.
    pub key: IdempotencyKey,
    /// Hash of the method, path and body of the request.
    pub request_hash: String,
    /// Time within which the request has a response.
    pub max_duration: Duration,
}

/// A response that is repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredResponse {
    /// HTTP status.
    pub status: u16,
    /// Body of the response.
    pub body: String,
}

/// What is stored for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredKey {
    /// Hash of the first request.
    pub request_hash: String,
    /// Message of the first request.
    pub message_id: MessageId,
    /// Whether the first request can still be in progress.
    pub is_in_progress: bool,
    /// Response to the first request. `None` while it is in progress, and if its process or its caller
    /// ended before the response.
    pub response: Option<StoredResponse>,
}

/// Stores and reads idempotency keys. [`crate::MessageRepository::insert_sending_once`] inserts them.
#[async_trait]
pub trait IdempotencyRepository: Send + Sync + 'static {
    /// Finds a key that has not expired.
    async fn find_key(&self, key: &IdempotencyKey) -> Result<Option<StoredKey>>;

    /// Stores the response to the first request with the key, which sent this message. A stored response is
    /// not replaced.
    async fn store_response(
        &self,
        key: &IdempotencyKey,
        message_id: &MessageId,
        response: &StoredResponse,
    ) -> Result<()>;

    /// Deletes a key whose first request sent nothing, so that the request can be repeated.
    async fn delete_key(&self, key: &IdempotencyKey, message_id: &MessageId) -> Result<()>;

    /// Deletes at most `limit` expired keys. Returns the number of deleted keys.
    async fn delete_expired_keys(&self, limit: u32) -> Result<u64>;
}
