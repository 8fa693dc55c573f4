//! Straight from the embedded broker: no queue, recorded before the client is acknowledged.

use crate::broker::{Intake, Taken};
use crate::domain::ClientId;
use crate::protocol::status::CONTROL_MAX_BYTES;
use crate::protocol::{Channel, Direction, Received, Rejected, Topics};
use crate::record::{Event, Receipt, Recorder};
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
        match self.topics.parse(&message.topic) {
            Some(topic)
                if topic.channel == Channel::Control && topic.direction == Direction::Out =>
            {
                metrics::received("control");
                if message.payload.is_empty() {
                    // Never registers and never removes anything.
                    return Taken::at_once();
                }
                if message.payload.len() > CONTROL_MAX_BYTES {
                    // Not held for the recorder to refuse: what waits there is memory.
                    let detail = format!("{} bytes", message.payload.len());
                    metrics::rejected(&message.topic, &Rejected::new("too_large", detail));
                    return Taken::at_once();
                }
                let client = topic.client;
                durable(self.recorder.submit(Event::Message { client, message }))
            }
            Some(_) => {
                metrics::received("data");
                Taken::at_once()
            }
            None => Taken::at_once(),
        }
    }

    fn is_full(&self) -> bool {
        self.recorder.is_full()
    }

    fn ended(&self, client: ClientId) -> Taken {
        durable(self.recorder.submit(Event::LinkEnded { client }))
    }
}

fn durable(receipt: Receipt) -> Taken {
    Taken::when(async move { receipt.durable().await.is_ok() })
}
