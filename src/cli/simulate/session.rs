//! One MQTT connection of a client: what the client publishes on it.
//!
//! `client` polls the connection's event loop. The methods here run in tasks of their own, because
//! a publish completes only while the event loop is polled.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::join_all;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use super::args::Misbehavior;
use super::client::Client;
use super::dialect::{Delivery, Dialect, Outgoing, with_change};
use crate::domain::{Clock as _, SystemClock};
use crate::mqtt::MqttHandle;

/// A client on one connection.
pub(super) struct Session {
    client: Arc<Client>,
    mqtt: MqttHandle,
    /// Serializes online and offline messages: after the offline message, no online message
    /// follows.
    presence_lock: Arc<Mutex<PublishLock>>,
}

/// State behind the presence lock.
#[derive(Default)]
pub(super) struct PublishLock {
    /// Set when the client starts to disconnect.
    is_closed: bool,
}

impl Session {
    pub fn new(client: Arc<Client>, mqtt: MqttHandle) -> Self {
        Self {
            client,
            mqtt,
            presence_lock: Arc::default(),
        }
    }

    /// Subscribes, then publishes a heartbeat (status dialect) and the online message.
    pub async fn go_online(self: Arc<Self>) {
        let lock = self.presence_lock.lock().await;
        if lock.is_closed {
            return;
        }
        let client = &self.client;
        for channel in client.dialect.subscriptions() {
            let topic = client.fleet.topics.topic(&client.id, *channel);
            if self.mqtt.subscribe(topic).await.is_err() {
                return;
            }
        }
        if let Some(heartbeat) = client.dialect.heartbeat() {
            self.publish(heartbeat).await;
        }
        if !self.skips_online() {
            if !self.publish_online(true).await {
                return;
            }
            client.online_acknowledged.store(true, Ordering::Relaxed);
            client.fleet.print_event(&client.id, "online");
        }
        *client.session.lock() = Some(self.clone());
    }

    /// With `--misbehave no-online`, status clients publish online messages only until the first
    /// one is acknowledged.
    fn skips_online(&self) -> bool {
        let client = &self.client;
        client.dialect == Dialect::Status
            && client.fleet.misbehaviors.has(Misbehavior::NoOnline)
            && client.online_acknowledged.load(Ordering::Relaxed)
    }

    /// Locks presence messages for [`Self::publish_update`]. Returns `None` while a presence
    /// message is in flight and after the client started to disconnect.
    pub fn try_lock_presence(&self) -> Option<OwnedMutexGuard<PublishLock>> {
        let lock = self.presence_lock.clone().try_lock_owned().ok()?;
        (!lock.is_closed).then_some(lock)
    }

    /// Publishes an online message with changed tags and facts.
    pub async fn publish_update(self: Arc<Self>, _lock: OwnedMutexGuard<PublishLock>) {
        self.publish_online(false).await;
    }

    /// Returns whether the broker acknowledged all messages.
    async fn publish_online(&self, is_first: bool) -> bool {
        let client = &self.client;
        let sequence = client.next_online_sequence();
        let info = client.info.clone();
        let info = if is_first {
            info
        } else {
            with_change(info, sequence)
        };
        let misbehaviors = &client.fleet.misbehaviors;
        let now = SystemClock.now();
        for round in misbehaviors.online_rounds(client.dialect, now, &info, is_first, sequence) {
            let results = join_all(round.into_iter().map(|message| self.publish(message))).await;
            if results.contains(&false) {
                return false;
            }
        }
        true
    }

    pub async fn respond(self: Arc<Self>, response: Outgoing) {
        self.publish(response).await;
    }

    /// Publishes the offline messages and disconnects, at the end of the simulation.
    pub async fn go_offline(self: Arc<Self>) {
        let messages = self.client.dialect.offline(SystemClock.now());
        if self.publish_and_disconnect(messages).await {
            self.client.fleet.counters.disconnected_cleanly();
            self.client.fleet.print_event(&self.client.id, "offline");
        }
    }

    /// Disconnects because the service requested it.
    pub async fn leave_on_request(self: Arc<Self>) {
        let messages = self.client.dialect.offline_on_request(SystemClock.now());
        self.publish_and_disconnect(messages).await;
    }

    /// Sends DISCONNECT only after all messages are acknowledged. Otherwise the connection ends
    /// without DISCONNECT, and the broker publishes the last will.
    async fn publish_and_disconnect(&self, messages: Vec<Outgoing>) -> bool {
        let mut lock = self.presence_lock.lock().await;
        lock.is_closed = true;
        for message in messages {
            if !self.publish(message).await {
                return false;
            }
        }
        self.mqtt.disconnect().await.is_ok()
    }

    /// Returns whether the broker acknowledged the message; for QoS 0, whether it was queued.
    async fn publish(&self, message: Outgoing) -> bool {
        let client = &self.client;
        let counters = &client.fleet.counters;
        let topic = client.fleet.topics.topic(&client.id, message.channel);
        let started = Instant::now();
        let result = match message.delivery {
            Delivery::Unacknowledged => {
                counters.heartbeat_published();
                let result = self.mqtt.publish_qos0(topic, message.payload);
                return result.await.is_ok();
            }
            Delivery::Acknowledged => {
                counters.message_published();
                self.mqtt.publish(topic, message.payload).await
            }
            Delivery::Retained => {
                counters.message_published();
                self.mqtt.publish_retained(topic, message.payload).await
            }
        };
        if result.is_ok() {
            counters.message_acknowledged(started.elapsed());
        }
        result.is_ok()
    }
}
