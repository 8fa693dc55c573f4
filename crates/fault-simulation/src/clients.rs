//! Runs the actions of the simulated clients.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::messages::{Online, Publication};
use crate::plan::{Action, ClientPlan, OnlineKind};
use crate::world::World;
use domain::Clock;

/// A client that publishes messages.
pub struct SimulatedClient {
    plan: ClientPlan,
    clock: Arc<dyn Clock>,
    /// Number of online messages so far.
    revision: u64,
    latest_online: Option<Publication>,
}

impl SimulatedClient {
    pub fn new(world: &Arc<World>, plan: ClientPlan) -> Self {
        Self {
            plan,
            clock: world.clock(0),
            revision: 0,
            latest_online: None,
        }
    }

    /// Performs all actions of the client.
    pub async fn run(mut self, publish: impl Fn(Publication)) {
        for step in std::mem::take(&mut self.plan.steps) {
            sleep(step.delay).await;
            if let Action::DropAndHeartbeat { reconnect_millis } = step.action {
                publish(self.plan.factory.offline());
                sleep(Duration::from_millis(reconnect_millis)).await;
                publish(self.plan.factory.heartbeat());
                continue;
            }
            for publication in self.publications(step.action) {
                publish(publication);
            }
        }
    }

    /// Returns the messages of an action.
    pub fn publications(&mut self, action: Action) -> Vec<Publication> {
        match action {
            Action::Online(kind) => vec![self.online(kind)],
            Action::Burst(count) => (0..count).map(|_| self.online(OnlineKind::Plain)).collect(),
            Action::Resend => self.latest_online.iter().cloned().collect(),
            Action::Offline if self.plan.factory.uses_handshake => {
                let factory = &self.plan.factory;
                vec![factory.offline(), factory.clear_retained()]
            }
            Action::Offline | Action::DropConnection => vec![self.plan.factory.offline()],
            Action::Heartbeat | Action::DropAndHeartbeat { .. } => {
                vec![self.plan.factory.heartbeat()]
            }
            Action::Response => vec![self.plan.factory.response(self.revision)],
            Action::Invalid { kind, variant } => vec![self.plan.factory.invalid(kind, variant)],
        }
    }

    fn online(&mut self, kind: OnlineKind) -> Publication {
        self.revision += 1;
        let now = self.clock.now();
        let sent = match kind {
            OnlineKind::WithoutSent => None,
            OnlineKind::SentEarlier(seconds) => Some(now - Duration::from_secs(seconds)),
            OnlineKind::SentLater(seconds) => Some(now + Duration::from_secs(seconds)),
            OnlineKind::Plain | OnlineKind::WithoutMessageId => Some(now),
        };
        let message_id = format!("{}-{}", self.plan.factory.client_id, self.revision);
        let publication = self.plan.factory.online(Online {
            message_id: (kind != OnlineKind::WithoutMessageId).then_some(message_id),
            sent,
            revision: self.revision,
        });
        self.latest_online = Some(publication.clone());
        publication
    }
}
