//! News for clients whose handshake was not taken. The recorder never waits for a broker, so they
//! go through a bounded channel to whoever publishes them.

use tokio::sync::mpsc;

use crate::protocol::{ClientTopic, Refusal};
use crate::telemetry::metrics;

/// More than this on their way are dropped: a client that hears nothing tries again.
const UNDER_WAY: usize = 1000;

/// Where refusals come out: the topic to publish each on, and what was wrong.
pub type RefusalsTold = mpsc::Receiver<(ClientTopic, Refusal)>;

/// Where refusals go in.
#[derive(Debug, Clone)]
pub struct Refusals(mpsc::Sender<(ClientTopic, Refusal)>);

impl Refusals {
    /// Both ends.
    #[must_use]
    pub fn channel() -> (Self, RefusalsTold) {
        let (sender, receiver) = mpsc::channel(UNDER_WAY);
        (Self(sender), receiver)
    }

    pub(super) fn tell(&self, refusal: (ClientTopic, Refusal)) {
        let told = self.0.try_send(refusal).is_ok();
        metrics::handshake_refused(told);
    }
}
