//! A connection that is kept up, for publishing and for hearing what comes back: made again whenever
//! it is lost, with nothing of the one before.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::time::timeout;

use super::backoff::Backoff;
use super::connection::{MqttEvent, MqttHandle, connect};
use super::options::{Options, OptionsError};
use crate::shutdown::TaskGroup;

/// A broker that accepts a connection and says nothing is as good as gone after this.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Publishes while there is a connection. A clone is the same.
#[derive(Clone)]
pub struct ReconnectingClient {
    state: Arc<RwLock<State>>,
    /// TopicScheme that are listened on, and by how many.
    topics: Arc<Mutex<HashMap<String, usize>>>,
}

/// A message on a topic that is listened on.
#[derive(Debug, Clone)]
pub struct IncomingMessage {
    /// The topic.
    pub topic: String,
    /// Its bytes.
    pub payload: Bytes,
    /// The broker had kept it: nobody said it now.
    pub retain: bool,
}

/// What is done with what is heard.
pub type OnMessage = Arc<dyn Fn(IncomingMessage) + Send + Sync>;

/// A topic is listened on while this is held, unless the connection is lost.
pub struct Subscription {
    connection: ReconnectingClient,
    topic: String,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // Under the lock until it is asked for: whoever listens next asks after this.
        let mut topics = self.connection.topics.lock();
        let Some(listeners) = topics.get_mut(&self.topic) else {
            return;
        };
        *listeners -= 1;
        if *listeners == 0 {
            topics.remove(&self.topic);
            if let State::Up(publisher) = &*self.connection.state.read() {
                publisher.unsubscribe(self.topic.clone());
            }
        }
    }
}

enum State {
    Up(MqttHandle),
    Down(String),
}

/// A message was not published, or not surely.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// There is no connection: it was not sent.
    #[error("no connection to the broker: {0}")]
    Down(String),
    /// The connection ended before the broker's answer: it may have it or not.
    #[error("the connection to the broker ended before its answer")]
    Lost,
    /// The broker did not answer in time: it may have it or not.
    #[error("the broker did not answer within {0:?}")]
    TimedOut(Duration),
    /// The broker does not let us listen there.
    #[error("the broker does not let us subscribe to the topic; check what it lets our user read")]
    Refused,
}

impl ReconnectingClient {
    /// Connects, and connects again, until `stopper` asks.
    ///
    /// # Errors
    /// When the settings cannot work.
    pub fn start(
        options: Options,
        on_heard: OnMessage,
        stopper: &TaskGroup,
    ) -> Result<Self, OptionsError> {
        // Tried once here, so that a wrong file is found at the start.
        drop(connect(&options)?);
        let state = Arc::new(RwLock::new(State::Down("not connected yet".to_owned())));
        stopper.spawn(keep(options, on_heard, state.clone(), stopper.clone()));
        Ok(Self {
            state,
            topics: Arc::default(),
        })
    }

    /// Publishes with QoS 1 and waits for the broker's acknowledgement, up to a bound.
    ///
    /// # Errors
    /// When there was none.
    pub async fn publish(
        &self,
        topic: String,
        payload: Vec<u8>,
        within: Duration,
    ) -> Result<(), PublishError> {
        let publisher = self.publisher()?;
        match timeout(within, publisher.publish(topic, payload)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(PublishError::Lost),
            Err(_) => Err(PublishError::TimedOut(within)),
        }
    }

    /// Listens on a topic, from when this returns.
    ///
    /// # Errors
    /// When the broker did not agree within the time.
    pub async fn listen(
        &self,
        topic: String,
        within: Duration,
    ) -> Result<Subscription, PublishError> {
        let publisher = self.publisher()?;
        *self.topics.lock().entry(topic.clone()).or_default() += 1;
        let listening = Subscription {
            connection: self.clone(),
            topic: topic.clone(),
        };
        match timeout(within, publisher.subscribe_and_wait(topic)).await {
            Ok(Ok(true)) => Ok(listening),
            Ok(Ok(false)) => Err(PublishError::Refused),
            Ok(Err(_)) => Err(PublishError::Lost),
            Err(_) => Err(PublishError::TimedOut(within)),
        }
    }

    fn publisher(&self) -> Result<MqttHandle, PublishError> {
        match &*self.state.read() {
            State::Up(publisher) => Ok(publisher.clone()),
            State::Down(why) => Err(PublishError::Down(why.clone())),
        }
    }

    /// Whether there is a connection.
    ///
    /// # Errors
    /// When there is none, with why.
    pub fn standing(&self) -> Result<(), String> {
        match &*self.state.read() {
            State::Up(_) => Ok(()),
            State::Down(why) => Err(format!("no connection to the broker: {why}")),
        }
    }
}

async fn keep(
    options: Options,
    on_heard: OnMessage,
    state: Arc<RwLock<State>>,
    stopper: TaskGroup,
) {
    let mut backoff = Backoff::default();
    loop {
        let why = tokio::select! {
            why = one_connection(&options, &on_heard, &state, &mut backoff) => why,
            () = stopper.asked() => {
                let last = std::mem::replace(&mut *state.write(), State::Down("stopping".to_owned()));
                if let State::Up(publisher) = last {
                    let _ = publisher.disconnect().await;
                }
                return;
            }
        };
        tracing::warn!(why, "no connection to the broker; connecting again");
        *state.write() = State::Down(why);
        tokio::select! {
            () = tokio::time::sleep(backoff.pause()) => {}
            () = stopper.asked() => return,
        }
    }
}

/// Lives one connection through, and says why it ended.
async fn one_connection(
    options: &Options,
    on_heard: &OnMessage,
    state: &RwLock<State>,
    backoff: &mut Backoff,
) -> String {
    let (publisher, mut link) = match connect(options) {
        Ok(pair) => pair,
        Err(error) => return error.to_string(),
    };
    match timeout(CONNECT_WITHIN, link.next()).await {
        Ok(MqttEvent::Connected { .. }) => {
            backoff.reset();
            tracing::info!("connected to the broker");
            *state.write() = State::Up(publisher);
        }
        Ok(MqttEvent::Lost(why)) => return why,
        Ok(_) => return "the broker answered out of turn".to_owned(),
        Err(_) => return format!("no answer within {CONNECT_WITHIN:?}"),
    }
    loop {
        match link.next().await {
            MqttEvent::Lost(why) => return why,
            MqttEvent::Message {
                topic,
                payload,
                retain,
                ..
            } => on_heard(IncomingMessage {
                topic,
                payload,
                retain,
            }),
            MqttEvent::Connected { .. } | MqttEvent::Subscribed(_) => {}
        }
    }
}

/// Connects once, for `doctor`.
///
/// # Errors
/// When the broker does not let us in, with why.
pub async fn probe(options: &Options) -> Result<(), String> {
    let (publisher, mut link) = connect(options).map_err(|error| error.to_string())?;
    match timeout(CONNECT_WITHIN, link.next()).await {
        Ok(MqttEvent::Connected { .. }) => {
            let _ = publisher.disconnect().await;
            let _ = timeout(CONNECT_WITHIN, link.next()).await;
            Ok(())
        }
        Ok(MqttEvent::Lost(why)) => Err(why),
        Ok(_) => Err("the broker answered out of turn".to_owned()),
        Err(_) => Err(format!("no answer within {CONNECT_WITHIN:?}")),
    }
}
