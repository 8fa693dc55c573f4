//! One MQTT connection of a simulated client, and the messages that the client publishes on it.
//!
//! The module `client` polls the event loop of the connection. A publish completes only while the
//! event loop is polled. Therefore the methods here must run in other tasks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::join_all;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use super::args::Misbehavior;
use super::client::Client;
use super::dialect::{Delivery, Dialect, OutgoingMessage, with_changed_tags_and_facts};
use domain::{Clock as _, SystemClock};
use mqtt::{MqttHandle, SubscriptionQos};

/// Publishes the messages of one client on one connection.
pub(super) struct Session {
    client: Arc<Client>,
    mqtt: MqttHandle,
    /// This lock is held while an online or offline message is published. Without the lock, an
    /// online message could be published after the offline message.
    presence_lock: Arc<Mutex<PresenceLockState>>,
}

/// State that the presence lock protects.
#[derive(Default)]
pub(super) struct PresenceLockState {
    /// Whether the client has started to disconnect.
    is_closing: bool,
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
        if lock.is_closing {
            return;
        }
        let client = &self.client;
        for channel in client.dialect.subscriptions() {
            let topic = client.fleet.topics.topic(&client.id, *channel);
            if self
                .mqtt
                .subscribe(topic, SubscriptionQos::AtLeastOnce)
                .await
                .is_err()
            {
                return;
            }
        }
        if let Some(heartbeat) = client.dialect.heartbeat() {
            self.publish(heartbeat).await;
        }
        if !self.skips_online_message() {
            if !self.publish_online_message(true).await {
                return;
            }
            client
                .is_online_message_acknowledged
                .store(true, Ordering::Relaxed);
            client.fleet.print_event(&client.id, "online");
        }
        *client.session.lock() = Some(self.clone());
    }

    /// Returns true if this connection must not publish an online message. This is the case with
    /// `--misbehave no-online`, for a status client whose online message the broker has already
    /// acknowledged.
    fn skips_online_message(&self) -> bool {
        let client = &self.client;
        client.dialect == Dialect::Status
            && client.fleet.misbehaviors.has(Misbehavior::NoOnline)
            && client
                .is_online_message_acknowledged
                .load(Ordering::Relaxed)
    }

    /// Acquires the presence lock for [`Self::publish_update`]. Returns `None` if a presence
    /// message is in flight or the client has started to disconnect.
    pub fn try_lock_presence(&self) -> Option<OwnedMutexGuard<PresenceLockState>> {
        let lock = self.presence_lock.clone().try_lock_owned().ok()?;
        (!lock.is_closing).then_some(lock)
    }

    /// Publishes an online message with changed tags and facts.
    pub async fn publish_update(
        self: Arc<Self>,
        _presence_guard: OwnedMutexGuard<PresenceLockState>,
    ) {
        self.publish_online_message(false).await;
    }

    /// Publishes an online message, or the messages that `--misbehave` requests. Returns whether
    /// the broker acknowledged all messages.
    async fn publish_online_message(&self, is_first_on_connection: bool) -> bool {
        let client = &self.client;
        let sequence_number = client.take_sequence_number();
        let info = client.info.clone();
        let info = if is_first_on_connection {
            info
        } else {
            with_changed_tags_and_facts(info, sequence_number)
        };
        let misbehaviors = &client.fleet.misbehaviors;
        let now = SystemClock.now();
        for round in misbehaviors.online_message_rounds(
            client.dialect,
            now,
            &info,
            is_first_on_connection,
            sequence_number,
        ) {
            let results = join_all(round.into_iter().map(|message| self.publish(message))).await;
            if results.contains(&false) {
                return false;
            }
        }
        true
    }

    pub async fn respond(self: Arc<Self>, response: OutgoingMessage) {
        self.publish(response).await;
    }

    /// Publishes the offline messages and disconnects. Called at the end of the simulation.
    pub async fn go_offline(self: Arc<Self>) {
        let messages = self.client.dialect.offline_messages(SystemClock.now());
        if self.publish_and_disconnect(messages).await {
            self.client.fleet.counters.record_clean_disconnect();
            self.client.fleet.print_event(&self.client.id, "offline");
        }
    }

    /// Disconnects because the service requested a disconnect or a reconnect.
    pub async fn disconnect_on_request(self: Arc<Self>) {
        let messages = self
            .client
            .dialect
            .messages_before_requested_disconnect(SystemClock.now());
        self.publish_and_disconnect(messages).await;
    }

    /// Publishes the messages and sends DISCONNECT. Returns whether both steps succeeded. If a
    /// message is not acknowledged, no DISCONNECT is sent, and the broker publishes the last will.
    async fn publish_and_disconnect(&self, messages: Vec<OutgoingMessage>) -> bool {
        let mut lock = self.presence_lock.lock().await;
        lock.is_closing = true;
        for message in messages {
            if !self.publish(message).await {
                return false;
            }
        }
        self.mqtt.disconnect().await.is_ok()
    }

    /// Publishes a message. Returns whether the broker acknowledged the message. For a message with
    /// QoS 0, returns whether the message was queued.
    async fn publish(&self, message: OutgoingMessage) -> bool {
        let client = &self.client;
        let counters = &client.fleet.counters;
        let topic = client.fleet.topics.topic(&client.id, message.channel);
        let started_at = Instant::now();
        let result = match message.delivery {
            Delivery::Unacknowledged => {
                counters.record_heartbeat();
                let result = self.mqtt.publish_qos0(topic, message.payload);
                return result.await.is_ok();
            }
            Delivery::Acknowledged => {
                counters.record_published_message();
                self.mqtt.publish(topic, message.payload).await
            }
            Delivery::Retained => {
                counters.record_published_message();
                self.mqtt.publish_retained(topic, message.payload).await
            }
        };
        if result.is_ok() {
            counters.record_acknowledged_message(started_at.elapsed());
        }
        result.is_ok()
    }
}
