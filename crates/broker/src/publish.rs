//! Publishes messages from this service to a client.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mqtt5::QoS;
use mqtt5::packet::publish::PublishPacket;
use tokio::time::Instant;

use super::Broker;
use domain::ClientId;

/// Maximum size of the parts of a PUBLISH packet except topic and payload.
const PUBLISH_OVERHEAD_BYTES: usize = 16;

/// The broker did not accept a message for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The client has no connection to the broker.
    #[error("the client is not connected to the broker")]
    NotConnected,
    /// The client is connected, but has not subscribed to the topic of the message. Therefore the
    /// client would not receive the message.
    #[error("the client has not subscribed to its topic")]
    NotSubscribed,
    /// The message is larger than the client accepts. MQTT 5 clients can limit the packet size.
    #[error("the message is larger than the client accepts ({0} bytes)")]
    TooLarge(u32),
    /// Earlier messages to the client are still queued, because the client reads too slowly.
    #[error("earlier messages to the client are still queued")]
    Backlog,
    /// The broker is shutting down.
    #[error("the broker is shutting down")]
    ShuttingDown,
    /// The send buffer of the client's connection stayed full until the timeout.
    #[error("the client's send buffer stayed full for {0:?}")]
    TimedOut(Duration),
}

impl Broker {
    /// Publishes a message to a client with QoS 1. Returns when the message is in the send buffer
    /// of the client's connection. Does not wait for the client's PUBACK.
    ///
    /// # Errors
    /// When the broker did not accept the message. After [`PublishError::TimedOut`] the client may
    /// still receive the message.
    pub async fn publish(
        &self,
        client: &ClientId,
        topic: String,
        payload: Vec<u8>,
        timeout: Duration,
    ) -> Result<(), PublishError> {
        let state = &self.state;
        if state.is_disconnecting_all.load(Ordering::Acquire) {
            return Err(PublishError::ShuttingDown);
        }
        let Some(limits) = state.live_connections.client_limits(client) else {
            return Err(PublishError::NotConnected);
        };
        // `mqtt5` would silently discard the message.
        if let Some(max_size) = limits.max_packet_size
            && topic.len() + payload.len() + PUBLISH_OVERHEAD_BYTES > max_size as usize
        {
            return Err(PublishError::TooLarge(max_size));
        }
        let router = &state.router_shards.shard_of(client).router;
        if !router.has_subscription(client.as_str(), &topic).await {
            return Err(PublishError::NotSubscribed);
        }
        // A new message is rejected while older messages wait in the client's session queue.
        // Otherwise the queue could become full. `mqtt5` would then silently discard the oldest
        // message, although the API had reported this message as sent.
        if router.queue_handle(client.as_str()).count() > 0 {
            return Err(PublishError::Backlog);
        }
        let packet = PublishPacket::new(topic, payload, QoS::AtLeastOnce);
        let deadline = Instant::now() + timeout;
        let routing = router.route_message_with_deadline(&packet, None, deadline);
        tokio::time::timeout_at(deadline, routing)
            .await
            .map_err(|_| PublishError::TimedOut(timeout))
    }
}
