//! A client that opens a new connection when the current connection is lost. The subscriptions and
//! the messages in flight of the lost connection are not restored.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use super::backoff::Backoff;
use super::connection::{MqttEvent, MqttHandle, connect};
use super::options::{ConnectOptions, ConnectOptionsError};
use service::TaskGroup;

/// Maximum time for opening a connection. It includes the wait for the broker's CONNACK.
const CONNACK_TIMEOUT: Duration = Duration::from_secs(10);
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// An MQTT client that reconnects automatically. All clones use the same connection.
#[derive(Clone)]
pub struct ReconnectingClient {
    options: Arc<ConnectOptions>,
    on_message: OnMessage,
    state: Arc<RwLock<ConnectionState>>,
    /// The topics with a [`SubscriptionGuard`].
    subscriptions: Arc<Mutex<HashMap<String, Subscription>>>,
}

struct Subscription {
    /// Number of guards of the topic.
    guard_count: usize,
    /// Whether [`MessageReaction::Unsubscribe`] has ended the subscription. The guards remain.
    has_ended: bool,
}

enum ConnectionState {
    Connected(MqttHandle),
    /// The reason why there is no connection.
    Disconnected(String),
}

/// A message on a subscribed topic.
#[derive(Debug, Clone)]
pub struct IncomingMessage {
    /// Topic of the message.
    pub topic: String,
    /// Payload of the message.
    pub payload: Bytes,
    /// Whether this is a retained message that the broker sent because of a new subscription.
    pub retain: bool,
}

/// What the client does after it has received a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageReaction {
    /// The subscription stays active.
    Continue,
    /// The client unsubscribes from the topic of the message, until the next call of
    /// [`ReconnectingClient::subscribe`] for this topic.
    Unsubscribe,
}

/// Callback for each received message. The callback must not block.
pub type OnMessage = Arc<dyn Fn(IncomingMessage) -> MessageReaction + Send + Sync>;

/// Keeps a subscription active. When the last guard of a topic is dropped, the client unsubscribes
/// from the topic. The subscription also ends when the connection is lost, or after
/// [`MessageReaction::Unsubscribe`].
pub struct SubscriptionGuard {
    client: ReconnectingClient,
    topic: String,
}

impl Drop for SubscriptionGuard {
    fn drop(&mut self) {
        // The lock is held until the UNSUBSCRIBE is queued. Therefore a concurrent call of
        // `subscribe` queues its SUBSCRIBE after this UNSUBSCRIBE.
        let mut subscriptions = self.client.subscriptions.lock();
        let Some(subscription) = subscriptions.get_mut(&self.topic) else {
            return;
        };
        subscription.guard_count -= 1;
        if subscription.guard_count > 0 {
            return;
        }
        let is_active = !subscription.has_ended;
        subscriptions.remove(&self.topic);
        if let ConnectionState::Connected(handle) = &*self.client.state.read()
            && is_active
        {
            handle.unsubscribe(self.topic.clone());
        }
    }
}

/// A publish or subscribe request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The request was not sent, because there is no connection.
    #[error("not connected to the MQTT broker: {0}")]
    NotConnected(String),
    /// The connection was lost before the acknowledgement was received. The broker may have
    /// processed the request.
    #[error("the connection to the MQTT broker was lost before its acknowledgement")]
    ConnectionLost,
    /// No acknowledgement was received within this time. The broker may have processed the request.
    #[error("no acknowledgement from the MQTT broker within {0:?}")]
    TimedOut(Duration),
    /// The broker rejected the subscription.
    #[error("the MQTT broker rejected the subscription; check the access rules of mqtt.username")]
    SubscriptionRejected,
}

impl ReconnectingClient {
    /// Creates a client. The client connects when [`ReconnectingClient::stay_connected`] is called.
    ///
    /// # Errors
    /// When the options are invalid.
    pub fn new(
        options: ConnectOptions,
        on_message: OnMessage,
    ) -> Result<Self, ConnectOptionsError> {
        // `connect` checks the options and reads the files, but does not open a connection. Errors
        // are therefore reported at startup.
        drop(connect(&options)?);
        let state = ConnectionState::Disconnected("not connected yet".to_owned());
        Ok(Self {
            options: Arc::new(options),
            on_message,
            state: Arc::new(RwLock::new(state)),
            subscriptions: Arc::default(),
        })
    }

    /// Opens a connection, and replaces each lost connection with a new connection. Returns when
    /// `tasks` is cancelled. Call this method only once per client.
    pub async fn stay_connected(self, tasks: TaskGroup) {
        let mut backoff = Backoff::default();
        loop {
            let reason = tokio::select! {
                reason = self.run_connection(&mut backoff) => reason,
                () = tasks.cancelled() => {
                    let shutdown = ConnectionState::Disconnected("shutting down".to_owned());
                    let previous = std::mem::replace(&mut *self.state.write(), shutdown);
                    if let ConnectionState::Connected(handle) = previous {
                        let _ = handle.disconnect().await;
                    }
                    return;
                }
            };
            tracing::warn!(reason, "MQTT connection lost; reconnecting");
            *self.state.write() = ConnectionState::Disconnected(reason);
            tokio::select! {
                () = tokio::time::sleep(backoff.next_delay()) => {}
                () = tasks.cancelled() => return,
            }
        }
    }

    /// Opens one connection and handles its events until the connection is lost. Returns the reason
    /// for the loss.
    async fn run_connection(&self, backoff: &mut Backoff) -> String {
        let (handle, mut event_loop) = match connect(&self.options) {
            Ok(connection) => connection,
            Err(error) => return error.to_string(),
        };
        match tokio::time::timeout(CONNACK_TIMEOUT, event_loop.next()).await {
            Ok(MqttEvent::Connected { .. }) => {
                backoff.reset();
                tracing::info!("connected to the MQTT broker");
                *self.state.write() = ConnectionState::Connected(handle.clone());
            }
            Ok(MqttEvent::Disconnected(reason)) => return reason,
            Ok(_) => return unexpected_packet_error(),
            Err(_) => return missing_connack_error(),
        }
        loop {
            match event_loop.next().await {
                MqttEvent::Disconnected(reason) => return reason,
                MqttEvent::Message {
                    topic,
                    payload,
                    retain,
                    ..
                } => {
                    let message = IncomingMessage {
                        topic: topic.clone(),
                        payload,
                        retain,
                    };
                    if (self.on_message)(message) == MessageReaction::Unsubscribe {
                        self.end_subscription(&handle, topic);
                    }
                }
                MqttEvent::Connected { .. } | MqttEvent::SubAck { .. } => {}
            }
        }
    }

    /// Unsubscribes from a topic although it has guards. Has no effect if the subscription has already
    /// ended: the broker may send more messages before it processes the UNSUBSCRIBE.
    fn end_subscription(&self, handle: &MqttHandle, topic: String) {
        let mut subscriptions = self.subscriptions.lock();
        if let Some(subscription) = subscriptions.get_mut(&topic)
            && !subscription.has_ended
        {
            subscription.has_ended = true;
            handle.unsubscribe(topic);
        }
    }

    /// Publishes with QoS 1 and waits for the PUBACK.
    ///
    /// # Errors
    /// When there is no connection, or no PUBACK was received within `timeout`.
    pub async fn publish(
        &self,
        topic: String,
        payload: Vec<u8>,
        timeout: Duration,
    ) -> Result<(), RequestError> {
        let handle = self.current_handle()?;
        match tokio::time::timeout(timeout, handle.publish(topic, payload)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(RequestError::ConnectionLost),
            Err(_) => Err(RequestError::TimedOut(timeout)),
        }
    }

    /// Subscribes to a topic with QoS 0 and waits for the SUBACK.
    ///
    /// # Errors
    /// When there is no connection, or the broker did not grant the subscription within `timeout`.
    pub async fn subscribe(
        &self,
        topic: String,
        timeout: Duration,
    ) -> Result<SubscriptionGuard, RequestError> {
        let handle = self.current_handle()?;
        let guard = self.add_guard(&topic);
        match tokio::time::timeout(timeout, handle.subscribe_qos0_and_wait(topic)).await {
            Ok(Ok(true)) => Ok(guard),
            Ok(Ok(false)) => Err(RequestError::SubscriptionRejected),
            Ok(Err(_)) => Err(RequestError::ConnectionLost),
            Err(_) => Err(RequestError::TimedOut(timeout)),
        }
    }

    fn add_guard(&self, topic: &str) -> SubscriptionGuard {
        let mut subscriptions = self.subscriptions.lock();
        let subscription = subscriptions
            .entry(topic.to_owned())
            .or_insert(Subscription {
                guard_count: 0,
                has_ended: false,
            });
        subscription.guard_count += 1;
        subscription.has_ended = false;
        SubscriptionGuard {
            client: self.clone(),
            topic: topic.to_owned(),
        }
    }

    fn current_handle(&self) -> Result<MqttHandle, RequestError> {
        match &*self.state.read() {
            ConnectionState::Connected(handle) => Ok(handle.clone()),
            ConnectionState::Disconnected(reason) => {
                Err(RequestError::NotConnected(reason.clone()))
            }
        }
    }

    /// Checks that the client is connected.
    ///
    /// # Errors
    /// When the client is not connected. The error contains the reason.
    pub fn health(&self) -> Result<(), String> {
        match self.current_handle() {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Checks that a connection can be opened, and that the broker delivers a message of `payload_bytes`
/// on `topic` to this client. Used by `doctor`.
///
/// # Errors
/// When one of the two is not possible.
pub async fn probe(
    options: &ConnectOptions,
    topic: &str,
    payload_bytes: usize,
) -> Result<(), ProbeError> {
    let (handle, mut event_loop) =
        connect(options).map_err(|error| ProbeError::Connect(error.to_string()))?;
    match tokio::time::timeout(CONNACK_TIMEOUT, event_loop.next()).await {
        Ok(MqttEvent::Connected { .. }) => {}
        Ok(MqttEvent::Disconnected(reason)) => return Err(ProbeError::Connect(reason)),
        Ok(_) => return Err(ProbeError::Connect(unexpected_packet_error())),
        Err(_) => return Err(ProbeError::Connect(missing_connack_error())),
    }
    let publish = async {
        // `rumqttc` may send a publish before an earlier subscription, so the SUBACK is awaited.
        let _ = handle.subscribe_qos0_and_wait(topic.to_owned()).await;
        let _ = handle
            .publish(topic.to_owned(), vec![b' '; payload_bytes])
            .await;
        std::future::pending().await
    };
    let receive = async {
        loop {
            match event_loop.next().await {
                MqttEvent::Message { payload, .. } if payload.len() == payload_bytes => {
                    return Ok(());
                }
                MqttEvent::SubAck { is_granted: false } => {
                    let reason = "the broker rejected a subscription";
                    return Err(ProbeError::Deliver(reason.to_owned()));
                }
                MqttEvent::Disconnected(reason) => return Err(ProbeError::Deliver(reason)),
                _ => {}
            }
        }
    };
    let delivery = async {
        tokio::select! {
            result = receive => result,
            never = publish => never,
        }
    };
    tokio::time::timeout(PROBE_TIMEOUT, delivery)
        .await
        .unwrap_or_else(|_| {
            let reason = format!("the broker did not deliver it within {PROBE_TIMEOUT:?}");
            Err(ProbeError::Deliver(reason))
        })?;
    let _ = handle.disconnect().await;
    // The event loop is polled again, because only a poll sends the DISCONNECT packet.
    let _ = tokio::time::timeout(CONNACK_TIMEOUT, event_loop.next()).await;
    Ok(())
}

/// The failed part of [`probe`], with the reason.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The connection could not be opened.
    #[error("{0}")]
    Connect(String),
    /// The message was not delivered.
    #[error("{0}")]
    Deliver(String),
}

fn unexpected_packet_error() -> String {
    "the broker sent another packet before CONNACK".to_owned()
}

fn missing_connack_error() -> String {
    format!("no CONNACK from the broker within {CONNACK_TIMEOUT:?}")
}
