//! Publishes messages to clients through an external broker. Uses one MQTT connection, which
//! reconnects automatically.

use std::time::Duration;

use async_trait::async_trait;

use super::{ClientPublisher, PublishError, Subscription};
use domain::ClientId;
use mqtt::{self, ReconnectingClient};

/// Publishes messages to clients through an external broker.
pub struct MqttPublisher {
    connection: ReconnectingClient,
}

impl MqttPublisher {
    /// Creates a publisher that uses this connection.
    #[must_use]
    pub fn new(connection: ReconnectingClient) -> Self {
        Self { connection }
    }
}

#[async_trait]
impl ClientPublisher for MqttPublisher {
    async fn publish(
        &self,
        _client: &ClientId,
        topic: String,
        payload: Vec<u8>,
        ack_timeout: Duration,
    ) -> Result<(), PublishError> {
        self.connection
            .publish(topic, payload, ack_timeout)
            .await
            .map_err(|error| match error {
                mqtt::RequestError::NotConnected(_) | mqtt::RequestError::SubscriptionRejected => {
                    unavailable(&error)
                }
                mqtt::RequestError::ConnectionLost => {
                    PublishError::Unavailable(format!("{error}; the message may still arrive"))
                }
                mqtt::RequestError::TimedOut(_) => PublishError::TimedOut(error.to_string()),
            })
    }

    /// Subscribes on the same connection that publishes the request. Therefore only the process
    /// that sent the request receives the response.
    async fn subscribe(
        &self,
        topic: String,
        ack_timeout: Duration,
    ) -> Result<Subscription, PublishError> {
        let subscription = self.connection.subscribe(topic, ack_timeout).await;
        // Every subscribe error becomes `Unavailable`. `TimedOut` would mean that the request may
        // still arrive, but the request was not published.
        let subscription = subscription.map_err(|error| unavailable(&error))?;
        Ok(Box::new(subscription))
    }
}

/// Returns the error for the caller. The reason why there is no connection can contain addresses
/// and errors of the operating system. The connection logs it.
fn unavailable(error: &mqtt::RequestError) -> PublishError {
    let text = match error {
        mqtt::RequestError::NotConnected(_) => "not connected to the MQTT broker".to_owned(),
        error => error.to_string(),
    };
    PublishError::Unavailable(text)
}
