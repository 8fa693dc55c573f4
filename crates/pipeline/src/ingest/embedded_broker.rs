//! Forwards messages of the embedded broker to the recorder, without Kafka. The broker acknowledges
//! a message after the recorder has committed the message.

use super::forward::{
    clears_retained_message, parse_topic_from_client, prepare_for_recorder, submit_to_recorder,
};
use super::metrics;
use crate::record::{Recorder, RecorderInput};
use broker::{MessageSink, PendingWrite, PreparedMessage};
use domain::{ClientId, OfflineReason};
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
    fn prepare(&self, message: InboundMessage) -> PreparedMessage {
        // A client can publish only on its own topics, because the broker rejects all other topics.
        // So `parse_topic_from_client` never returns `None` here.
        let Some(topic) = parse_topic_from_client(&self.topics, &message.topic) else {
            return PreparedMessage::new(PendingWrite::completed);
        };
        let channel = topic.channel;
        let prepared_input = (!clears_retained_message(channel, &message))
            .then(|| prepare_for_recorder(&self.recorder, Some(topic), message));
        let recorder = self.recorder.clone();
        PreparedMessage::new(move || {
            metrics::count_received_message(channel.name());
            match prepared_input {
                Some(input) => submit_to_recorder(&recorder, input),
                None => PendingWrite::completed(),
            }
        })
    }

    fn is_overloaded(&self) -> bool {
        self.recorder.is_overloaded()
    }

    fn on_client_disconnected(&self, client: ClientId, reason: OfflineReason) -> PendingWrite {
        let receipt = self
            .recorder
            .submit(RecorderInput::ConnectionClosed { client, reason });
        PendingWrite::new(async move { receipt.wait_until_durable().await.is_ok() })
    }
}
