//! News for clients whose handshake was not taken. The recorder never waits for a broker, so they
//! go through a bounded channel to whoever publishes them.

use tokio::sync::mpsc;

use crate::protocol::{ClientTopic, HandshakeError};
use crate::telemetry::metrics;

/// More than this on their way are dropped: a client that hears nothing tries again.
const UNDER_WAY: usize = 1000;

/// Where refusals come out: the topic to publish each on, and what was wrong.
pub type HandshakeErrorReceiver = mpsc::Receiver<(ClientTopic, HandshakeError)>;

/// Where refusals go in.
#[derive(Debug, Clone)]
pub struct HandshakeErrorSender(mpsc::Sender<(ClientTopic, HandshakeError)>);

impl HandshakeErrorSender {
    /// Both ends.
    #[must_use]
    pub fn channel() -> (Self, HandshakeErrorReceiver) {
        let (sender, receiver) = mpsc::channel(UNDER_WAY);
        (Self(sender), receiver)
    }

    pub(super) fn tell(&self, refusal: (ClientTopic, HandshakeError)) {
        let told = self.0.try_send(refusal).is_ok();
        metrics::handshake_refused(told);
    }
}
