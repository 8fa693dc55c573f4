//! Straight from the embedded broker: no queue, recorded before the client is acknowledged.

use super::destination::{from_client, is_removal, record};
use crate::broker::{Intake, Taken};
use crate::domain::ClientId;
use crate::protocol::{Received, Topics};
use crate::record::{Event, Recorder};
use crate::telemetry::metrics;

/// The embedded broker's way into the recorder.
pub struct EmbeddedIntake {
    recorder: Recorder,
    topics: Topics,
}

impl EmbeddedIntake {
    /// An intake for this recorder.
    #[must_use]
    pub fn new(recorder: Recorder, topics: Topics) -> Self {
        Self { recorder, topics }
    }
}

impl Intake for EmbeddedIntake {
    fn message(&self, message: Received) -> Taken {
        // The broker lets a client publish on its own topics only.
        let Some(topic) = from_client(&self.topics, &message.topic) else {
            return Taken::at_once();
        };
        metrics::received(topic.route.label());
        if is_removal(topic.route, &message) {
            return Taken::at_once();
        }
        record(&self.recorder, Some(topic), message)
    }

    fn is_full(&self) -> bool {
        self.recorder.is_full()
    }

    fn ended(&self, client: ClientId) -> Taken {
        let receipt = self.recorder.submit(Event::LinkEnded { client });
        Taken::when(async move { receipt.durable().await.is_ok() })
    }
}
