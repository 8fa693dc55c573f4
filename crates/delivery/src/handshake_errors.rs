//! Publishes `handshake-error` messages to clients whose handshake was invalid.

use std::sync::Arc;

use tokio::sync::mpsc;
use uuid::Uuid;

use super::{ClientPublisher, PublishError};
use domain::Clock;
use protocol::{ClientTopic, HandshakeError, TopicScheme, handshake};
use service::shutdown::TaskGroup;

/// Publishes the handshake errors from the channel `errors`. Returns when the channel is closed or
/// `tasks` is cancelled.
///
/// An error that cannot be published is discarded. The client retries its handshake even if it
/// receives no error message.
pub async fn publish_handshake_errors(
    mut errors: mpsc::Receiver<(ClientTopic, HandshakeError)>,
    publisher: Arc<dyn ClientPublisher>,
    topics: TopicScheme,
    clock: Arc<dyn Clock>,
    tasks: TaskGroup,
) {
    loop {
        let received = tokio::select! {
            received = errors.recv() => received,
            () = tasks.cancelled() => return,
        };
        let Some((topic, handshake_error)) = received else {
            return;
        };
        let payload =
            handshake::encode_handshake_error(&handshake_error, Uuid::new_v4(), clock.now());
        let client = &topic.client;
        let topic_name = topics.topic_name(&topic);
        match publisher.publish(client, topic_name, payload).await {
            Ok(()) | Err(PublishError::NotConnected) => {}
            Err(error) => {
                tracing::debug!(client_id = %client, %error, "failed to publish handshake-error");
            }
        }
    }
}
