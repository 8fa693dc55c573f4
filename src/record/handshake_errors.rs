//! Channel from the recorder to the task that publishes handshake errors, so the recorder never
//! waits for the broker.

use tokio::sync::mpsc;

use crate::protocol::{ClientTopic, HandshakeError};
use crate::telemetry::metrics;

/// Further errors are dropped: a client that receives no response retries its handshake.
const MAX_QUEUED_ERRORS: usize = 1000;

/// Receives each error with the topic to publish it on.
pub type HandshakeErrorReceiver = mpsc::Receiver<(ClientTopic, HandshakeError)>;

/// Queues handshake errors for publishing.
#[derive(Debug, Clone)]
pub struct HandshakeErrorSender(mpsc::Sender<(ClientTopic, HandshakeError)>);

impl HandshakeErrorSender {
    /// Creates a channel.
    #[must_use]
    pub fn channel() -> (Self, HandshakeErrorReceiver) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_ERRORS);
        (Self(sender), receiver)
    }

    /// Queues an error, or drops it if the queue is full.
    pub(super) fn send(&self, error: (ClientTopic, HandshakeError)) {
        let queued = self.0.try_send(error).is_ok();
        metrics::handshake_error(queued);
    }
}
