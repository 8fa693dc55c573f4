//! The interface through which the broker forwards client messages to the rest of the process.
//!
//! The broker acknowledges a message only after the sink has stored the message durably.

use std::future::Future;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use domain::{ClientId, OfflineReason};
use protocol::InboundMessage;

/// Receives the messages and disconnects of the broker's clients.
///
/// The broker calls [`PreparedMessage::submit`] and [`MessageSink::on_client_disconnected`] in the
/// order in which it accepted the messages and disconnects. The broker holds a lock of all
/// connections during each of these calls, so they must be short and must not block. The write to
/// durable storage continues in the returned [`PendingWrite`].
pub trait MessageSink: Send + Sync + 'static {
    /// Called for each message or last will that a client published to one of its own topics,
    /// before the broker has accepted the message. The broker holds no lock, so this method may
    /// decode the message. It must have no effect until the broker submits the prepared message.
    fn prepare(&self, message: InboundMessage) -> PreparedMessage;

    /// Called when a client has disconnected, that is, when none of its connections is open.
    /// `reason` says how the client's latest connection ended.
    fn on_client_disconnected(&self, client: ClientId, reason: OfflineReason) -> PendingWrite;

    /// Returns whether so many messages wait for storage that the broker should reject new
    /// connections.
    fn is_overloaded(&self) -> bool;
}

/// A message that the sink has prepared. Dropping the value discards the message.
pub struct PreparedMessage(Box<dyn FnOnce() -> PendingWrite + Send>);

impl PreparedMessage {
    /// Creates a prepared message. `submit` passes the message on and returns its pending write.
    #[must_use]
    pub fn new(submit: impl FnOnce() -> PendingWrite + Send + 'static) -> Self {
        Self(Box::new(submit))
    }

    /// Passes the message on.
    #[must_use]
    pub fn submit(self) -> PendingWrite {
        (self.0)()
    }
}

/// An accepted message or event whose write to durable storage may still be in progress.
pub struct PendingWrite(Option<BoxFuture<'static, bool>>);

impl PendingWrite {
    /// Creates a write that is already complete, for messages that do not have to be stored.
    #[must_use]
    pub fn completed() -> Self {
        Self(None)
    }

    /// Creates a pending write. The future `write` must return true if the message is durable, and
    /// false if the write failed.
    #[must_use]
    pub fn new(write: impl Future<Output = bool> + Send + 'static) -> Self {
        Self(Some(write.boxed()))
    }

    /// Waits for the write. Returns true if the message is durable, and false if the write failed.
    pub async fn wait_until_durable(self) -> bool {
        match self.0 {
            Some(write) => write.await,
            None => true,
        }
    }
}
