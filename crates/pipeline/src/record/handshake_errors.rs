//! Channel from the recorder to the task that publishes handshake errors. The recorder only queues
//! an error, so the recorder never waits for the broker.

use tokio::sync::mpsc;

use super::metrics;
use protocol::{ClientTopic, HandshakeError};

/// Maximum number of handshake errors in the channel. Further errors are dropped. A client that
/// receives no response retries its handshake.
const MAX_QUEUED_ERRORS: usize = 1000;

/// Receives handshake errors, each with the topic of the invalid handshake.
pub type HandshakeErrorReceiver = mpsc::Receiver<(ClientTopic, HandshakeError)>;

/// Queues handshake errors for publishing.
#[derive(Debug, Clone)]
pub struct HandshakeErrorSender(mpsc::Sender<(ClientTopic, HandshakeError)>);

impl HandshakeErrorSender {
    /// Creates a channel for handshake errors.
    #[must_use]
    pub fn channel() -> (Self, HandshakeErrorReceiver) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_ERRORS);
        (Self(sender), receiver)
    }

    /// Queues an error. Drops the error if the queue is full.
    pub(super) fn send(&self, error: (ClientTopic, HandshakeError)) {
        let is_queued = self.0.try_send(error).is_ok();
        metrics::count_invalid_handshake(is_queued);
    }
}
