//! Publishes messages to clients through the embedded broker.

use std::time::Duration;

use async_trait::async_trait;

use super::{ClientPublisher, PublishError, Subscription};
use broker::{self, Broker};
use domain::ClientId;

/// Publishes messages to clients through the embedded broker.
pub struct EmbeddedPublisher {
    broker: Broker,
}

impl EmbeddedPublisher {
    /// Creates a publisher that uses this broker.
    #[must_use]
    pub fn new(broker: Broker) -> Self {
        Self { broker }
    }
}

#[async_trait]
impl ClientPublisher for EmbeddedPublisher {
    async fn publish(
        &self,
        client: &ClientId,
        topic: String,
        payload: Vec<u8>,
        ack_timeout: Duration,
    ) -> Result<(), PublishError> {
        self.broker
            .publish(client, topic, payload, ack_timeout)
            .await
            .map_err(|error| match error {
                broker::PublishError::NotConnected | broker::PublishError::NotSubscribed => {
                    PublishError::NotConnected
                }
                broker::PublishError::TooLarge(_)
                | broker::PublishError::Backlog
                | broker::PublishError::ShuttingDown => {
                    PublishError::Unavailable(error.to_string())
                }
                broker::PublishError::TimedOut(_) => PublishError::TimedOut(error.to_string()),
            })
    }

    /// Does nothing. A subscription is not needed, because the embedded broker runs in this process
    /// and receives all messages from clients.
    async fn subscribe(
        &self,
        _topic: String,
        _ack_timeout: Duration,
    ) -> Result<Subscription, PublishError> {
        Ok(Box::new(()))
    }
}
