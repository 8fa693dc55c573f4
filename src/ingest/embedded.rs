//! Straight from the embedded broker: no queue, recorded before the client is acknowledged.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;

use crate::broker::{Broker, Intake, Taken};
use crate::domain::{ClientId, Clock, Timestamp};
use crate::protocol::{Channel, Direction, Received, Topics};
use crate::record::{Event, Receipt, Recorder};
use crate::shutdown::Stopper;
use crate::store::Store;
use crate::telemetry::metrics;

/// How many rows are looked at, at a time, for clients that did not come back.
const CHUNK: u32 = 1000;

/// How long to wait before asking a database again that did not answer.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// The embedded broker's way into the recorder.
pub struct EmbeddedIntake {
    recorder: Recorder,
    topics: Topics,
    clock: Arc<dyn Clock>,
}

impl EmbeddedIntake {
    /// An intake for this recorder.
    #[must_use]
    pub fn new(recorder: Recorder, topics: Topics, clock: Arc<dyn Clock>) -> Self {
        Self {
            recorder,
            topics,
            clock,
        }
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
        let at = self.clock.now();
        durable(self.recorder.submit(Event::LinkEnded { client, at }))
    }
}

fn durable(receipt: Receipt) -> Taken {
    Taken::when(async move { receipt.durable().await.is_ok() })
}

/// After a start: whoever was connected before and does not come back within the grace is gone.
///
/// A crash of this process cut every connection without a word, so no will told of it. A client
/// that is back has a link, whether or not it said online again.
pub async fn end_those_who_stay_away(
    broker: Arc<Broker>,
    store: Arc<dyn Store>,
    started: Timestamp,
    grace: Duration,
    stopper: Stopper,
) {
    let sweep = async {
        tokio::time::sleep(grace).await;
        let mut ended = 0_usize;
        let mut after: Option<ClientId> = None;
        loop {
            let chunk = match store.seen_before(started, after.as_ref(), CHUNK).await {
                Ok(chunk) => chunk,
                Err(error) => {
                    tracing::warn!(%error, "cannot look for clients that stayed away; trying again");
                    tokio::time::sleep(ASK_AGAIN).await;
                    continue;
                }
            };
            let Some(last) = chunk.last().cloned() else {
                break;
            };
            // One chunk at a time is under way, so memory stays bounded.
            let gone = chunk
                .iter()
                .filter_map(|client| broker.end_if_absent(client));
            ended += join_all(gone.map(Taken::durable)).await.len();
            after = Some(last);
        }
        tracing::info!(
            ended,
            "clients that did not come back after the start are gone"
        );
    };
    tokio::select! {
        () = sweep => {}
        () = stopper.asked() => {}
    }
}
