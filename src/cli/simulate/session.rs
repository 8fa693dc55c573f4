//! What talks while the link is being polled.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::join_all;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use super::args::Misbehavior;
use super::client::Client;
use super::dialect::{Delivery, Dialect, Outgoing, changed};
use crate::domain::{Clock as _, SystemClock};
use crate::mqtt::MqttHandle;

/// A client on one connection.
pub(super) struct Session {
    client: Arc<Client>,
    publisher: MqttHandle,
    /// Held by whoever says that the client is there or gone, so that nothing is said behind a
    /// farewell.
    mouth: Arc<Mutex<PublishLock>>,
}

#[derive(Default)]
pub(super) struct PublishLock {
    closed: bool,
}

impl Session {
    pub fn new(client: Arc<Client>, publisher: MqttHandle) -> Self {
        Self {
            client,
            publisher,
            mouth: Arc::default(),
        }
    }

    /// Subscribes, gives a sign of life, and says that the client is there.
    pub async fn arrive(self: Arc<Self>) {
        let mouth = self.mouth.lock().await;
        if mouth.closed {
            return;
        }
        let client = &self.client;
        for route in client.voice.listens_on() {
            let topic = client.fleet.names.topic(&client.id, *route);
            if self.publisher.subscribe(topic).await.is_err() {
                return;
            }
        }
        if let Some(sign) = client.voice.sign_of_life() {
            self.tell(sign).await;
        }
        if !self.is_silent() {
            if !self.say_online(true).await {
                return;
            }
            client.told.store(true, Ordering::Relaxed);
            client.fleet.event(&client.id, "online");
        }
        *client.seat.lock() = Some(self.clone());
    }

    /// Newer clients of the status dialect say online at their start only. Who was never heard has
    /// not started.
    fn is_silent(&self) -> bool {
        let client = &self.client;
        client.voice == Dialect::Status
            && client.fleet.manners.has(Misbehavior::NoOnline)
            && client.told.load(Ordering::Relaxed)
    }

    /// The right to say that something changed; none while something else is being said.
    pub fn try_mouth(&self) -> Option<OwnedMutexGuard<PublishLock>> {
        let mouth = self.mouth.clone().try_lock_owned().ok()?;
        (!mouth.closed).then_some(mouth)
    }

    /// Says that something changed.
    pub async fn change(self: Arc<Self>, _mouth: OwnedMutexGuard<PublishLock>) {
        self.say_online(false).await;
    }

    async fn say_online(&self, arriving: bool) -> bool {
        let client = &self.client;
        let nth = client.next_time();
        let reported = client.reported.clone();
        let reported = if arriving {
            reported
        } else {
            changed(reported, nth)
        };
        let manners = &client.fleet.manners;
        let now = SystemClock.now();
        for round in manners.online(client.voice, now, &reported, (arriving, nth)) {
            let said = join_all(round.into_iter().map(|saying| self.tell(saying))).await;
            if said.contains(&false) {
                return false;
            }
        }
        true
    }

    pub async fn answer(self: Arc<Self>, answer: Outgoing) {
        self.tell(answer).await;
    }

    /// Leaves because the process ends.
    pub async fn say_farewell(self: Arc<Self>) {
        let farewell = self.client.voice.farewell(SystemClock.now());
        if self.leave(farewell).await {
            self.client.fleet.tally.left();
            self.client.fleet.event(&self.client.id, "offline");
        }
    }

    /// Leaves because the service wants it.
    pub async fn part(self: Arc<Self>) {
        let parting = self.client.voice.parting(SystemClock.now());
        self.leave(parting).await;
    }

    /// A farewell that was not heard is not followed by a clean end: then the will speaks.
    async fn leave(&self, sayings: Vec<Outgoing>) -> bool {
        let mut mouth = self.mouth.lock().await;
        mouth.closed = true;
        for saying in sayings {
            if !self.tell(saying).await {
                return false;
            }
        }
        self.publisher.disconnect().await.is_ok()
    }

    async fn tell(&self, saying: Outgoing) -> bool {
        let client = &self.client;
        let tally = &client.fleet.tally;
        let topic = client.fleet.names.topic(&client.id, saying.route);
        let began = Instant::now();
        let said = match saying.how {
            Delivery::Unacknowledged => {
                tally.sign_of_life();
                let said = self.publisher.publish_unacknowledged(topic, saying.payload);
                return said.await.is_ok();
            }
            Delivery::Acknowledged => {
                tally.published();
                self.publisher.publish(topic, saying.payload).await
            }
            Delivery::Retained => {
                tally.published();
                let said = self.publisher.publish_retained(topic, saying.payload);
                said.await
            }
        };
        if said.is_ok() {
            tally.acknowledged(began.elapsed());
        }
        said.is_ok()
    }
}
