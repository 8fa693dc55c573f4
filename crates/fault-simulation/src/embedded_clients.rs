//! The clients of the embedded deployment. A client waits for each acknowledgement, and after a lost
//! connection it reconnects and sends the unacknowledged message again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;

use crate::clients::SimulatedClient;
use crate::embedded_broker::{EmbeddedBroker, Generation};
use crate::messages::{Content, Online, Publication};
use crate::plan::{Action, ClientPlan};
use crate::world::World;

/// Probability, in percent, that a client does not return after a crash of the connector.
const STAY_AWAY_PERCENT: u64 = 10;

/// What the clients must find in the database, according to the acknowledgements.
#[derive(Debug, Clone, Default)]
pub struct ClientState {
    /// The latest acknowledged online message.
    pub latest_online: Option<Online>,
    /// An online message that was sent and not acknowledged.
    pub pending_online: Option<Online>,
    /// Topic and SHA-256 of the acknowledged messages that can never be processed.
    pub dead_letters: BTreeSet<(String, String)>,
    /// A message that can never be processed and was not acknowledged.
    pub pending_dead_letter: Option<(String, String)>,
    /// Whether the client has a connection to the broker.
    pub is_connected: bool,
    /// Whether the client has no unacknowledged message and will not change its state.
    pub is_settled: bool,
}

/// The broker of the running process.
pub type CurrentBroker = Arc<Mutex<Option<Arc<EmbeddedBroker>>>>;

/// A check that runs after each acknowledgement.
pub type CheckAcknowledged = Arc<dyn Fn(&Publication, &ClientState) + Send + Sync>;

/// A client of the embedded deployment.
pub struct EmbeddedClient {
    pub world: Arc<World>,
    pub plan: ClientPlan,
    pub messages: SimulatedClient,
    pub broker: CurrentBroker,
    pub state: Arc<Mutex<ClientState>>,
    pub check: CheckAcknowledged,
    /// Whether the client returns after every crash.
    pub always_returns: bool,
}

/// A connection to the broker of one run of the process.
struct Connection {
    broker: Arc<EmbeddedBroker>,
    generation: Generation,
}

/// The client has ended, because it does not return after a crash.
struct StaysAway;

impl EmbeddedClient {
    /// Performs all actions, then stays connected or disconnected.
    pub async fn run(mut self) {
        let result = self.run_steps().await;
        if result.is_err() {
            self.trace("stays away");
        }
        self.state.lock().is_connected &= result.is_ok();
        self.settle(true);
    }

    async fn run_steps(&mut self) -> Result<(), StaysAway> {
        let mut connection = None;
        for step in std::mem::take(&mut self.plan.steps) {
            sleep(step.delay).await;
            self.perform(step.action, &mut connection).await?;
        }
        // Without a connection, the client is disconnected for good.
        while let Some(Connection { broker, .. }) = &connection {
            self.settle(true);
            broker.wait_until_closed().await;
            self.settle(false);
            self.lose(&mut connection).await?;
            self.connect(&mut connection).await?;
        }
        Ok(())
    }

    fn settle(&self, is_settled: bool) {
        self.state.lock().is_settled = is_settled;
        self.world.notify();
    }

    fn trace(&self, text: &str) {
        let client_id = &self.plan.factory.client_id;
        self.world.trace(Some(client_id), text);
    }

    async fn perform(
        &mut self,
        action: Action,
        connection: &mut Option<Connection>,
    ) -> Result<(), StaysAway> {
        match action {
            Action::DropConnection => {
                self.disconnect(connection, true);
                return Ok(());
            }
            Action::DropAndHeartbeat { reconnect_millis } => {
                self.disconnect(connection, true);
                sleep(Duration::from_millis(reconnect_millis)).await;
                return self.connect(connection).await;
            }
            _ => {}
        }
        for publication in self.messages.publications(action) {
            if publication.content != Content::ClearsRetained {
                self.send(&publication, connection).await?;
            }
        }
        if action == Action::Offline {
            self.disconnect(connection, false);
        }
        Ok(())
    }

    /// Closes the connection, cleanly or with the last will.
    fn disconnect(&self, connection: &mut Option<Connection>, with_will: bool) {
        self.state.lock().is_connected = false;
        if let Some(Connection { broker, generation }) = connection.take() {
            self.trace(if with_will {
                "loses its connection"
            } else {
                "disconnects"
            });
            let factory = &self.plan.factory;
            let will = with_will.then(|| factory.offline());
            broker.disconnect(factory.client_id.clone(), generation, will);
        }
    }

    /// Handles a connection that the broker has closed.
    async fn lose(&self, connection: &mut Option<Connection>) -> Result<(), StaysAway> {
        let is_open = connection
            .as_ref()
            .is_some_and(|connection| connection.broker.is_open());
        self.disconnect(connection, true);
        if !is_open && !self.always_returns && self.world.chance(STAY_AWAY_PERCENT) {
            return Err(StaysAway);
        }
        sleep(self.world.millis(100..=20_000)).await;
        Ok(())
    }

    /// Connects, and sends what real clients send after a reconnect: a heartbeat or, in the handshake
    /// dialect, the latest handshake.
    async fn connect(&mut self, connection: &mut Option<Connection>) -> Result<(), StaysAway> {
        while connection.is_none() {
            let mut changes = self.world.changes();
            let broker = self.broker.lock().clone();
            let Some(broker) = broker.filter(|broker| broker.is_open()) else {
                let _ = changes.changed().await;
                continue;
            };
            let generation = broker.connect(&self.plan.factory.client_id);
            self.trace("connects");
            *connection = Some(Connection { broker, generation });
            self.state.lock().is_connected = true;
            let state = self.state.lock().clone();
            let first_message = match state.pending_online.or(state.latest_online) {
                Some(online) if self.plan.factory.uses_handshake => {
                    Some(self.plan.factory.online(online))
                }
                None if self.plan.factory.uses_handshake => None,
                _ => Some(self.plan.factory.heartbeat()),
            };
            if let Some(message) = first_message
                && !self.try_send(&message, connection.as_ref()).await
            {
                self.lose(connection).await?;
            }
        }
        Ok(())
    }

    /// Sends a message until it is acknowledged.
    async fn send(
        &mut self,
        publication: &Publication,
        connection: &mut Option<Connection>,
    ) -> Result<(), StaysAway> {
        loop {
            self.connect(connection).await?;
            if self.try_send(publication, connection.as_ref()).await {
                return Ok(());
            }
            self.lose(connection).await?;
        }
    }

    /// Sends a message once. Returns whether it was acknowledged.
    async fn try_send(&self, publication: &Publication, connection: Option<&Connection>) -> bool {
        let Some(Connection { broker, generation }) = connection else {
            return false;
        };
        self.trace(&format!("sends {}", publication.describe()));
        self.world.count("messages to the embedded broker");
        let dead_letter = (publication.topic.clone(), publication.sha256());
        match &publication.content {
            Content::Online(online) => self.state.lock().pending_online = Some(online.clone()),
            Content::Invalid => self.state.lock().pending_dead_letter = Some(dead_letter.clone()),
            Content::Offline | Content::Heartbeat | Content::ClearsRetained => {}
        }
        let is_acknowledged = broker.publish(*generation, publication).await;
        if !is_acknowledged {
            self.trace("receives no acknowledgement");
            self.world.count("connections without acknowledgement");
            return false;
        }
        self.trace("receives the acknowledgement");
        let mut state = self.state.lock();
        match &publication.content {
            Content::Online(online) => {
                state.latest_online = Some(online.clone());
                state.pending_online = None;
            }
            Content::Invalid => {
                state.pending_dead_letter = None;
                state.dead_letters.insert(dead_letter);
            }
            Content::Offline | Content::Heartbeat | Content::ClearsRetained => {}
        }
        (self.check)(publication, &state);
        true
    }
}
