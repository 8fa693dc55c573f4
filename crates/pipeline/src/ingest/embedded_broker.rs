//! Forwards messages of the embedded broker to the recorder, without Kafka. The broker acknowledges
//! a message after the recorder has committed the message.

use super::forward::{clears_retained_message, parse_topic_from_client, submit_to_recorder};
use super::metrics;
use crate::record::{Recorder, RecorderInput};
use broker::{MessageSink, PendingWrite};
use domain::ClientId;
use protocol::{InboundMessage, TopicScheme};

/// Message sink of the embedded broker. Submits all messages and closed connections to the
/// recorder.
pub struct RecorderSink {
    recorder: Recorder,
    topics: TopicScheme,
}

impl RecorderSink {
    /// Creates a sink that submits to `recorder`.
    #[must_use]
    pub fn new(recorder: Recorder, topics: TopicScheme) -> Self {
        Self { recorder, topics }
    }
}

impl MessageSink for RecorderSink {
    fn on_message_received(&self, message: InboundMessage) -> PendingWrite {
        // A client can publish only on its own topics, because the broker rejects all other topics.
        // So `parse_topic_from_client` never returns `None` here.
        let Some(topic) = parse_topic_from_client(&self.topics, &message.topic) else {
            return PendingWrite::completed();
        };
        metrics::count_received_message(topic.channel.name());
        if clears_retained_message(topic.channel, &message) {
            return PendingWrite::completed();
        }
        submit_to_recorder(&self.recorder, Some(topic), message)
    }

    fn is_overloaded(&self) -> bool {
        self.recorder.is_overloaded()
    }

    fn on_client_disconnected(&self, client: ClientId) -> PendingWrite {
        let receipt = self
            .recorder
            .submit(RecorderInput::ConnectionClosed { client });
        PendingWrite::new(async move { receipt.wait_until_durable().await.is_ok() })
    }
}
