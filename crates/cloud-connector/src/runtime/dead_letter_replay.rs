//! The replay of dead letters in the process that records them. With Kafka, the command
//! `dead-letters replay` produces the dead letters to Kafka instead.

use std::sync::Arc;

use super::build_context::BuildContext;
use broker::{Broker, PendingWrite};
use domain::{ClientId, OfflineReason};
use pipeline::record::{self, Recorder};
use protocol::TopicScheme;
use service::TaskGroup;
use store::DeadLetterRepository;

/// Replays the dead letters that an operator selected.
pub(super) struct DeadLetterReplay {
    dead_letters: Arc<dyn DeadLetterRepository>,
    recorder: Recorder,
    topics: TopicScheme,
    /// The embedded broker. `None` if the process uses an external broker.
    broker: Option<Broker>,
}

impl DeadLetterReplay {
    pub fn new(context: &BuildContext<'_>, recorder: &Recorder, broker: Option<&Broker>) -> Self {
        Self {
            dead_letters: context.repositories.dead_letters.clone(),
            recorder: recorder.clone(),
            topics: context.topics.clone(),
            broker: broker.cloned(),
        }
    }

    pub async fn run(self, tasks: TaskGroup) {
        let end_if_not_connected = move |client: &ClientId| {
            // The broker does not know how the client's latest connection ended.
            let broker = self.broker.as_ref()?;
            let pending_write = broker.report_if_disconnected(client, OfflineReason::Will);
            pending_write.map(PendingWrite::wait_until_durable)
        };
        record::replay_dead_letters(
            self.dead_letters,
            self.recorder,
            self.topics,
            end_if_not_connected,
            tasks,
        )
        .await;
    }
}
