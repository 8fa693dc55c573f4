//! From the service to a client.

use std::time::Duration;

use mqtt5::QoS;
use mqtt5::packet::publish::PublishPacket;
use tokio::time::Instant;

use super::Broker;
use crate::domain::ClientId;

/// The broker did not take a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The client's connection has just ended.
    #[error("the client is not connected to the broker")]
    NotConnected,
    /// The client is connected and has not subscribed to that topic: nothing would reach it.
    #[error("the client has not subscribed to its topic")]
    NotSubscribed,
    /// The client does not take what was sent before.
    #[error("the client has not taken what was sent before")]
    Backlog,
    /// The broker is stopping.
    #[error("the broker is stopping")]
    Stopping,
    /// The client does not take messages fast enough.
    #[error("the broker did not take the message within {0:?}")]
    TimedOut(Duration),
}

impl Broker {
    /// Hands a message to the broker, which has it when this returns.
    ///
    /// # Errors
    /// When it did not take it. After [`PublishError::TimedOut`] it may still arrive.
    pub async fn publish(
        &self,
        client: &ClientId,
        topic: String,
        payload: Vec<u8>,
        within: Duration,
    ) -> Result<(), PublishError> {
        let shared = &self.shared;
        if self.stopper.is_asked() {
            return Err(PublishError::Stopping);
        }
        if !shared.presence.is_connected(client) {
            return Err(PublishError::NotConnected);
        }
        if !shared
            .router
            .has_subscription(client.as_str(), &topic)
            .await
        {
            return Err(PublishError::NotSubscribed);
        }
        // The queue behind the lane throws its oldest away when it is full: nothing may get there
        // that a caller was told is sent.
        if shared.router.queue_handle(client.as_str()).count() > 0 {
            return Err(PublishError::Backlog);
        }
        let packet = PublishPacket::new(topic, payload, QoS::AtLeastOnce);
        let deadline = Instant::now() + within;
        let routing = shared
            .router
            .route_message_with_deadline(&packet, None, deadline);
        tokio::time::timeout_at(deadline, routing)
            .await
            .map_err(|_| PublishError::TimedOut(within))
    }
}
