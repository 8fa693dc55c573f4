//! Tells clients that their handshake was not taken, and why.

use std::sync::Arc;

use tokio::sync::mpsc;
use uuid::Uuid;

use super::{ClientPublisher, PublishError};
use crate::domain::Clock;
use crate::protocol::{ClientTopic, HandshakeError, TopicScheme, handshake};
use crate::shutdown::TaskGroup;

/// Publishes what comes out of `refusals`, until `stopper` asks. One that does not get through is
/// dropped: the client hears nothing, and tries again later.
pub async fn publish_handshake_errors(
    mut refusals: mpsc::Receiver<(ClientTopic, HandshakeError)>,
    outlet: Arc<dyn ClientPublisher>,
    topics: TopicScheme,
    clock: Arc<dyn Clock>,
    stopper: TaskGroup,
) {
    loop {
        let next = tokio::select! {
            next = refusals.recv() => next,
            () = stopper.asked() => return,
        };
        let Some((topic, refusal)) = next else {
            return;
        };
        let payload = handshake::encode_refusal(&refusal, Uuid::new_v4(), clock.now());
        let client = &topic.client;
        let told = outlet.publish(client, topics.name(&topic), payload).await;
        match told {
            Ok(()) | Err(PublishError::NotConnected) => {}
            Err(error) => {
                tracing::debug!(client_id = %client, %error, "handshake-error not delivered");
            }
        }
    }
}
