//! Publishes `handshake-error` messages to clients whose handshake was invalid.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use uuid::Uuid;

use super::{ClientPublisher, PublishError};
use domain::Clock;
use protocol::{ClientTopic, EncodedMessage, HandshakeError, TopicScheme};
use service::TaskGroup;

/// Publishes the handshake errors from the channel `errors` until `tasks` is cancelled. Each error
/// has the topic of the invalid handshake.
///
/// An error that cannot be published is discarded. The client retries its handshake even if it
/// receives no error message.
pub async fn publish_handshake_errors(
    mut errors: mpsc::Receiver<(ClientTopic, HandshakeError)>,
    publisher: Arc<dyn ClientPublisher>,
    topics: TopicScheme,
    clock: Arc<dyn Clock>,
    ack_timeout: Duration,
    tasks: TaskGroup,
) {
    loop {
        let received = tokio::select! {
            received = errors.recv() => received,
            () = tasks.cancelled() => return,
        };
        let Some((topic, handshake_error)) = received else {
            // The recorder has stopped, so there are no more handshake errors.
            return tasks.cancelled().await;
        };
        let encoded_error = topic.channel.dialect().encode_handshake_error(
            &handshake_error,
            Uuid::new_v4(),
            clock.now(),
        );
        let Some(EncodedMessage { channel, payload }) = encoded_error else {
            continue;
        };
        let Some(topic_name) = topics.topic_name(&ClientTopic {
            channel,
            ..topic.clone()
        }) else {
            continue;
        };
        let client = &topic.client;
        let publish_result = publisher
            .publish(client, topic_name, payload, ack_timeout)
            .await;
        match publish_result {
            Ok(()) | Err(PublishError::NotConnected) => {}
            Err(error) => {
                tracing::debug!(client_id = %client, %error, "failed to publish handshake-error");
            }
        }
    }
}
