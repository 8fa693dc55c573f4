//! Publishes messages to clients through an external broker. Uses two MQTT connections, which reconnect
//! automatically: one publishes, and the other receives responses. The broker's acknowledgements are
//! never behind responses, which a client can send in any size and number.

use std::time::Duration;

use async_trait::async_trait;

use super::{ClientPublisher, PublishError, Subscription};
use domain::ClientId;
use mqtt::{self, ReconnectingClient};

/// Publishes messages to clients through an external broker.
pub struct MqttPublisher {
    publishing: ReconnectingClient,
    /// Receives responses. `None` if the process sends no requests.
    responses: Option<ReconnectingClient>,
}

impl MqttPublisher {
    /// Creates a publisher that uses these connections. `responses` must pass its messages to
    /// [`ResponseReceiver::on_message`](crate::ResponseReceiver::on_message).
    #[must_use]
    pub fn new(publishing: ReconnectingClient, responses: Option<ReconnectingClient>) -> Self {
        Self {
            publishing,
            responses,
        }
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
        self.publishing
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

    /// Subscribes on a connection of the process that sends the request. Therefore only this process
    /// receives the response.
    async fn subscribe(
        &self,
        topic: String,
        ack_timeout: Duration,
    ) -> Result<Subscription, PublishError> {
        let Some(responses) = &self.responses else {
            let problem = "this process has no connection for responses";
            return Err(PublishError::Unavailable(problem.to_owned()));
        };
        let subscription = responses.subscribe(topic, ack_timeout).await;
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
