//! The interface through which the broker forwards client messages to the rest of the process.
//!
//! The broker acknowledges a publish only after the sink has stored it durably.

use std::future::Future;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use crate::domain::ClientId;
use crate::protocol::InboundMessage;

/// Receives messages and disconnects of the broker's clients.
///
/// The order of the calls is the order of the events. The broker calls these methods while it holds
/// a lock, so they must not block: only the returned [`PendingWrite`] may be awaited.
pub trait MessageSink: Send + Sync + 'static {
    /// Accepts a message that a client published on one of its own topics, or its last will.
    fn message_received(&self, message: InboundMessage) -> PendingWrite;

    /// Accepts the event that a client's last connection has closed.
    fn connection_closed(&self, client: ClientId) -> PendingWrite;

    /// Returns whether the queue is so long that the broker should reject new connections.
    fn is_overloaded(&self) -> bool;
}

/// An accepted message or event whose write to durable storage may still be in progress.
pub struct PendingWrite(Option<BoxFuture<'static, bool>>);

impl PendingWrite {
    /// Creates a write that is already complete, for messages that need not be stored.
    #[must_use]
    pub fn completed() -> Self {
        Self(None)
    }

    /// Creates a write that completes with `durable`, which returns false if the write failed.
    #[must_use]
    pub fn new(durable: impl Future<Output = bool> + Send + 'static) -> Self {
        Self(Some(durable.boxed()))
    }

    /// Waits for the write. Returns false if the write failed.
    pub async fn durable(self) -> bool {
        match self.0 {
            Some(durable) => durable.await,
            None => true,
        }
    }
}
