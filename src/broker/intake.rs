//! Where the broker's messages go. The broker awaits the answer before it acknowledges.

use std::future::Future;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use crate::domain::ClientId;
use crate::protocol::InboundMessage;

/// Takes in what clients publish and what becomes of their connections.
///
/// A call takes the event in at once, in the order of the calls; only durability is awaited. The
/// broker calls it under a lock, so it must not block.
pub trait MessageSink: Send + Sync + 'static {
    /// A client published this on a topic of its own, or its will did.
    fn message(&self, message: InboundMessage) -> Receipt;

    /// The client's last connection has ended.
    fn ended(&self, client: ClientId) -> Receipt;

    /// Whether so much is waiting that no new client should be let in.
    fn is_full(&self) -> bool;
}

/// Something that was taken in and will be durable.
pub struct Receipt(Option<BoxFuture<'static, bool>>);

impl Receipt {
    /// Nothing to wait for.
    #[must_use]
    pub fn at_once() -> Self {
        Self(None)
    }

    /// Durable when this resolves to true; never, if to false.
    #[must_use]
    pub fn when(durable: impl Future<Output = bool> + Send + 'static) -> Self {
        Self(Some(durable.boxed()))
    }

    /// Waits until it is durable. False if it never will be.
    pub async fn durable(self) -> bool {
        match self.0 {
            Some(durable) => durable.await,
            None => true,
        }
    }
}
