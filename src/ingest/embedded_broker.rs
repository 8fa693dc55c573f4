//! Straight from the embedded broker: no queue, recorded before the client is acknowledged.

use super::next_stage::{from_client, is_removal, record};
use crate::broker::{MessageSink, Receipt};
use crate::domain::ClientId;
use crate::protocol::{InboundMessage, TopicScheme};
use crate::record::{Recorder, RecorderInput};
use crate::telemetry::metrics;

/// The embedded broker's way into the recorder.
pub struct EmbeddedIntake {
    recorder: Recorder,
    topics: TopicScheme,
}

impl EmbeddedIntake {
    /// An intake for this recorder.
    #[must_use]
    pub fn new(recorder: Recorder, topics: TopicScheme) -> Self {
        Self { recorder, topics }
    }
}

impl MessageSink for EmbeddedIntake {
    fn message(&self, message: InboundMessage) -> Receipt {
        // The broker lets a client publish on its own topics only.
        let Some(topic) = from_client(&self.topics, &message.topic) else {
            return Receipt::at_once();
        };
        metrics::received(topic.route.label());
        if is_removal(topic.route, &message) {
            return Receipt::at_once();
        }
        record(&self.recorder, Some(topic), message)
    }

    fn is_full(&self) -> bool {
        self.recorder.is_full()
    }

    fn ended(&self, client: ClientId) -> Receipt {
        let receipt = self
            .recorder
            .submit(RecorderInput::ConnectionClosed { client });
        Receipt::when(async move { receipt.durable().await.is_ok() })
    }
}
