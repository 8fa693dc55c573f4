//! Publishes messages to clients through the embedded broker.

use std::time::Duration;

use async_trait::async_trait;

use super::{ClientPublisher, PublishError, Subscription};
use broker::{self, Broker};
use domain::ClientId;

/// Publishes messages to clients through the embedded broker.
pub struct EmbeddedPublisher {
    broker: Broker,
    publish_timeout: Duration,
}

impl EmbeddedPublisher {
    /// Creates a publisher. `publish_timeout` is the maximum time until the broker accepts a
    /// message.
    #[must_use]
    pub fn new(broker: Broker, publish_timeout: Duration) -> Self {
        Self {
            broker,
            publish_timeout,
        }
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
            .publish(client, topic, payload, self.publish_timeout)
            .await
            .map_err(|error| match error {
                broker::PublishError::NotConnected => PublishError::NotConnected,
                broker::PublishError::NotSubscribed
                | broker::PublishError::Backlog
                | broker::PublishError::ShuttingDown => {
                    PublishError::Unavailable(error.to_string())
                }
                broker::PublishError::TimedOut(_) => PublishError::TimedOut(error.to_string()),
            })
    }

    /// Does nothing. A subscription is not needed, because the embedded broker runs in this process
    /// and receives all messages from clients.
    async fn subscribe(&self, _topic: String) -> Result<Subscription, PublishError> {
        Ok(Box::new(()))
    }
}
