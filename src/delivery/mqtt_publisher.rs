//! Through an outside broker, over one connection that is kept up.

use std::time::Duration;

use async_trait::async_trait;

use super::{ClientPublisher, PublishError, Subscription};
use crate::domain::ClientId;
use crate::mqtt::{self, ReconnectingClient};

/// An outside broker as an outlet.
pub struct MqttPublisher {
    connection: ReconnectingClient,
    within: Duration,
}

impl MqttPublisher {
    /// Publishes over this connection; the broker has so long to acknowledge.
    #[must_use]
    pub fn new(connection: ReconnectingClient, within: Duration) -> Self {
        Self { connection, within }
    }
}

#[async_trait]
impl ClientPublisher for MqttPublisher {
    async fn publish(
        &self,
        _client: &ClientId,
        topic: String,
        payload: Vec<u8>,
    ) -> Result<(), PublishError> {
        self.connection
            .publish(topic, payload, self.within)
            .await
            .map_err(|error| match error {
                mqtt::PublishError::Down(_) | mqtt::PublishError::Refused => {
                    PublishError::Unavailable(error.to_string())
                }
                mqtt::PublishError::Lost => {
                    PublishError::Unavailable(format!("{error}; it may still arrive"))
                }
                mqtt::PublishError::TimedOut(_) => PublishError::TimedOut(error.to_string()),
            })
    }

    /// PendingResponses come to whoever asked, over the connection that asked: none of it concerns the
    /// others.
    async fn listen(&self, topic: String) -> Result<Subscription, PublishError> {
        let listening = self.connection.listen(topic, self.within).await;
        // Nothing was sent yet, whatever happened.
        let listening = listening.map_err(|error| PublishError::Unavailable(error.to_string()))?;
        Ok(Box::new(listening))
    }
}
