//! A simulated embedded MQTT broker, which passes messages to the real sink of the recorder. It has
//! the same promises as the real one: it acknowledges a message after the sink has stored it, ignores
//! messages of a connection that a newer connection of the client has replaced, and publishes a last
//! will only without a newer connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use crate::messages::Publication;
use crate::options::Plant;
use crate::process::Process;
use broker::{MessageSink as _, PendingWrite};
use domain::{ClientId, OfflineReason};
use pipeline::ingest::embedded_broker::RecorderSink;
use protocol::InboundMessage;
use service::TaskGroup;

/// Time after which the broker closes a connection whose message is not durable.
const ACK_TIMEOUT: Duration = Duration::from_secs(15);

pub type Generation = u64;

#[derive(Default)]
struct Connections {
    last_generation: Generation,
    /// The newest connection of each connected client.
    live: BTreeMap<String, Generation>,
}

/// The broker of one run of the process.
pub struct EmbeddedBroker {
    process: Arc<Process>,
    group: TaskGroup,
    sink: RecorderSink,
    plant: Option<Plant>,
    connections: Mutex<Connections>,
}

impl EmbeddedBroker {
    pub fn new(
        process: &Arc<Process>,
        group: &TaskGroup,
        sink: RecorderSink,
        plant: Option<Plant>,
    ) -> Arc<Self> {
        Arc::new(Self {
            process: process.clone(),
            group: group.clone(),
            sink,
            plant,
            connections: Mutex::default(),
        })
    }

    /// Opens a connection of a client. It replaces an older connection.
    pub fn connect(&self, client_id: &str) -> Generation {
        let mut connections = self.connections.lock();
        connections.last_generation += 1;
        let generation = connections.last_generation;
        connections.live.insert(client_id.to_owned(), generation);
        generation
    }

    /// Waits until the process has crashed or shuts down.
    pub async fn wait_until_closed(&self) {
        tokio::select! {
            () = self.process.wait_until_dead() => {}
            () = self.group.cancelled() => {}
        }
    }

    /// Returns whether clients can connect.
    pub fn is_open(&self) -> bool {
        self.process.is_running() && !self.group.is_cancelled()
    }

    /// Publishes a message. Returns whether the client receives a PUBACK. Otherwise the connection is
    /// closed.
    pub async fn publish(&self, generation: Generation, publication: &Publication) -> bool {
        let acknowledgement = async {
            sleep(self.process.world.network_delay()).await;
            self.process.fault_point().await;
            let Some(pending_write) = self.submit(generation, publication, false) else {
                return false;
            };
            if self.plant == Some(Plant::EarlyAck) {
                tokio::spawn(pending_write.wait_until_durable());
                return true;
            }
            let durable = timeout(ACK_TIMEOUT, pending_write.wait_until_durable()).await;
            self.process.fault_point().await;
            durable.unwrap_or(false)
        };
        tokio::select! {
            is_acknowledged = acknowledgement => is_acknowledged,
            () = self.wait_until_closed() => false,
        }
    }

    /// Submits a message to the sink, unless the client has a newer connection.
    fn submit(
        &self,
        generation: Generation,
        publication: &Publication,
        is_last_will: bool,
    ) -> Option<PendingWrite> {
        let message = InboundMessage {
            topic: publication.topic.clone(),
            payload: publication.payload.clone(),
            retained: false,
            is_operator_replay: false,
            is_last_will: Some(is_last_will),
            is_takeover: false,
            received_at: self.process.clock.now(),
            ingest_stamp: None,
            truncated_from: None,
        };
        let prepared = self.sink.prepare(message);
        let connections = self.connections.lock();
        let is_newest = connections.live.get(&publication.client_id) == Some(&generation);
        (is_newest && self.is_open()).then(|| prepared.submit())
    }

    /// Closes a connection. Publishes the last will of a client that did not disconnect cleanly. A
    /// paused process notices the end of the connection when it resumes.
    pub fn disconnect(
        self: &Arc<Self>,
        client_id: String,
        generation: Generation,
        will: Option<Publication>,
    ) {
        let broker = self.clone();
        tokio::spawn(async move {
            broker.process.fault_point().await;
            broker.handle_disconnect(&client_id, generation, will.as_ref());
        });
    }

    fn handle_disconnect(
        &self,
        client_id: &str,
        generation: Generation,
        will: Option<&Publication>,
    ) {
        if !self.is_open() {
            return;
        }
        // Nothing waits for the two writes, because no PUBACK depends on them.
        if let Some(will) = will {
            drop(self.submit(generation, will, true));
        }
        let reason = match will {
            Some(_) => OfflineReason::Will,
            None => OfflineReason::Client,
        };
        let mut connections = self.connections.lock();
        if connections.live.get(client_id) == Some(&generation) {
            connections.live.remove(client_id);
            if let Ok(client) = ClientId::new(client_id) {
                drop(self.sink.on_client_disconnected(client, reason));
            }
        }
    }

    /// Reports a client as disconnected if it has no connection.
    pub fn report_if_disconnected(
        &self,
        client: &ClientId,
        reason: OfflineReason,
    ) -> Option<PendingWrite> {
        let connections = self.connections.lock();
        let is_connected = connections.live.contains_key(client.as_str());
        (!is_connected).then(|| self.sink.on_client_disconnected(client.clone(), reason))
    }
}
