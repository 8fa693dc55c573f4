//! Through the broker in this process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{ClientPublisher, PublishError, Subscription};
use crate::broker::{self, Broker};
use crate::domain::ClientId;

/// The embedded broker as an outlet.
pub struct EmbeddedPublisher {
    broker: Arc<Broker>,
    within: Duration,
}

impl EmbeddedPublisher {
    /// Publishes through this broker, which has so long to take a message.
    #[must_use]
    pub fn new(broker: Arc<Broker>, within: Duration) -> Self {
        Self { broker, within }
    }
}

#[async_trait]
impl ClientPublisher for EmbeddedPublisher {
    async fn publish(
        &self,
        client: &ClientId,
        topic: String,
        payload: Vec<u8>,
    ) -> Result<(), PublishError> {
        self.broker
            .publish(client, topic, payload, self.within)
            .await
            .map_err(|error| match error {
                broker::PublishError::NotConnected => PublishError::NotConnected,
                broker::PublishError::NotSubscribed
                | broker::PublishError::Backlog
                | broker::PublishError::Stopping => PublishError::Unavailable(error.to_string()),
                broker::PublishError::TimedOut(_) => PublishError::TimedOut(error.to_string()),
            })
    }

    /// All that clients say passes through this process.
    async fn listen(&self, _topic: String) -> Result<Subscription, PublishError> {
        Ok(Box::new(()))
    }
}
