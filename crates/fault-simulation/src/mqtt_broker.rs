//! A simulated external MQTT broker: retained messages, and the persistent session of `ingest`.
//!
//! The session has one connection at a time. Messages with QoS 1 stay in the session until they are
//! acknowledged, and are redelivered in order to the next connection. Messages with QoS 0 are lost
//! while no connection exists.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::messages::{Content, Publication, check_content, topic_scheme};
use crate::world::World;
use protocol::TopicScheme;

/// A message that the broker delivers.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Number of the publication, in the order in which the broker received the publications.
    pub number: u64,
    pub publication: Publication,
    pub is_retained_replay: bool,
}

pub type ConnectionId = u64;

#[derive(Default)]
struct Session {
    connection: Option<ConnectionId>,
    connection_count: u64,
    /// Messages that were not sent to the current connection.
    queue: VecDeque<Delivery>,
    /// Messages that were sent to the current connection and are not acknowledged.
    in_flight: VecDeque<Delivery>,
}

#[derive(Default)]
struct State {
    publications: u64,
    /// Number and content of all presence messages, by client.
    presence: BTreeMap<String, Vec<(u64, Content)>>,
    /// The retained message of each topic, with its number.
    retained: BTreeMap<String, (u64, Publication)>,
    session: Session,
}

/// A simulated broker.
pub struct MqttBroker {
    world: Arc<World>,
    topics: TopicScheme,
    state: Mutex<State>,
}

impl MqttBroker {
    pub fn new(world: &Arc<World>) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            topics: topic_scheme(),
            state: Mutex::default(),
        })
    }

    /// Publishes a message of a client.
    pub fn publish(&self, publication: Publication) {
        let client_id = &publication.client_id;
        if let Err(problem) = check_content(&self.topics, &publication) {
            self.world.report_violation(Some(client_id), problem);
        }
        let text = format!("publishes {}", publication.describe());
        self.world.trace(Some(client_id), text);
        let mut state = self.state.lock();
        state.publications += 1;
        let number = state.publications;
        if matches!(publication.content, Content::Online(_) | Content::Offline) {
            let presence = state.presence.entry(client_id.clone()).or_default();
            presence.push((number, publication.content.clone()));
        }
        if publication.retain {
            if publication.payload.is_empty() {
                state.retained.remove(&publication.topic);
            } else {
                let retained = (number, publication.clone());
                state.retained.insert(publication.topic.clone(), retained);
            }
        }
        if publication.is_reliable || state.session.connection.is_some() {
            state.session.queue.push_back(Delivery {
                number,
                publication,
                is_retained_replay: false,
            });
        }
        drop(state);
        self.world.notify();
    }

    /// Opens a connection of the session. Closes the previous connection.
    pub fn connect(&self) -> ConnectionId {
        let mut state = self.state.lock();
        let session = &mut state.session;
        close_connection(session);
        session.connection_count += 1;
        session.connection = Some(session.connection_count);
        let connection = session.connection_count;
        drop(state);
        self.world.notify();
        connection
    }

    /// Delivers the retained messages, as after a new subscription.
    pub fn subscribe(&self, connection: ConnectionId) {
        let mut state = self.state.lock();
        if state.session.connection != Some(connection) {
            return;
        }
        let replays: Vec<Delivery> = state
            .retained
            .values()
            .map(|(number, publication)| Delivery {
                number: *number,
                publication: publication.clone(),
                is_retained_replay: true,
            })
            .collect();
        state.session.queue.extend(replays);
        drop(state);
        self.world.notify();
    }

    /// Closes a connection.
    pub fn disconnect(&self, connection: ConnectionId) {
        let session = &mut self.state.lock().session;
        if session.connection == Some(connection) {
            close_connection(session);
        }
        self.world.notify();
    }

    /// Closes the current connection.
    pub fn disconnect_current(&self) {
        close_connection(&mut self.state.lock().session);
        self.world.notify();
    }

    pub fn is_connected(&self, connection: ConnectionId) -> bool {
        self.state.lock().session.connection == Some(connection)
    }

    /// Returns the next message for a connection.
    pub fn next(&self, connection: ConnectionId) -> Option<Delivery> {
        let mut state = self.state.lock();
        let session = &mut state.session;
        if session.connection != Some(connection) {
            return None;
        }
        let delivery = session.queue.pop_front()?;
        if delivery.publication.is_reliable {
            session.in_flight.push_back(delivery.clone());
        }
        Some(delivery)
    }

    /// Acknowledges the oldest message in flight of a connection.
    pub fn acknowledge(&self, connection: ConnectionId) {
        let mut state = self.state.lock();
        if state.session.connection == Some(connection) {
            state.session.in_flight.pop_front();
        }
        drop(state);
        self.world.notify();
    }

    /// Returns the number of messages that are not acknowledged.
    pub fn backlog(&self) -> usize {
        let session = &self.state.lock().session;
        session.queue.len() + session.in_flight.len()
    }

    /// Returns number and content of the presence messages of a client, in the order in which the
    /// broker received them.
    pub fn presence_messages(&self, client_id: &str) -> Vec<(u64, Content)> {
        let state = self.state.lock();
        state.presence.get(client_id).cloned().unwrap_or_default()
    }
}

fn close_connection(session: &mut Session) {
    session.connection = None;
    // QoS 0 messages are not redelivered.
    session
        .queue
        .retain(|delivery| delivery.publication.is_reliable);
    for delivery in std::mem::take(&mut session.in_flight).into_iter().rev() {
        session.queue.push_front(delivery);
    }
}
