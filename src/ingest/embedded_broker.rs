//! Forwards messages of the embedded broker to the recorder, without Kafka. The broker acknowledges
//! a message after the recorder has committed it.

use super::next_stage::{clears_retained_message, from_client, record};
use crate::broker::{MessageSink, PendingWrite};
use crate::domain::ClientId;
use crate::protocol::{InboundMessage, TopicScheme};
use crate::record::{Recorder, RecorderInput};
use crate::telemetry::metrics;

/// Message sink of the embedded broker that submits everything to the recorder.
pub struct RecorderSink {
    recorder: Recorder,
    topics: TopicScheme,
}

impl RecorderSink {
    /// Creates a sink for this recorder.
    #[must_use]
    pub fn new(recorder: Recorder, topics: TopicScheme) -> Self {
        Self { recorder, topics }
    }
}

impl MessageSink for RecorderSink {
    fn message_received(&self, message: InboundMessage) -> PendingWrite {
        // The broker accepts a client's messages on that client's own topics only, so other topics
        // do not occur here.
        let Some(topic) = from_client(&self.topics, &message.topic) else {
            return PendingWrite::completed();
        };
        metrics::message_received(topic.channel.label());
        if clears_retained_message(topic.channel, &message) {
            return PendingWrite::completed();
        }
        record(&self.recorder, Some(topic), message)
    }

    fn is_overloaded(&self) -> bool {
        self.recorder.is_overloaded()
    }

    fn connection_closed(&self, client: ClientId) -> PendingWrite {
        let receipt = self
            .recorder
            .submit(RecorderInput::ConnectionClosed { client });
        PendingWrite::new(async move { receipt.durable().await.is_ok() })
    }
}
