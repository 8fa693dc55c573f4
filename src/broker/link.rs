//! One connection of one client: who it is, what it may do, and what becomes of its messages.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use mqtt5::broker::events::{
    BrokerEventHandler, ClientDisconnectEvent, ClientPublishEvent, PublishAction,
};
use mqtt5::broker::{AuthProvider, AuthResult};
use mqtt5::packet::connect::ConnectPacket;
use mqtt5::types::ReasonCode;

use super::presence::Generation;
use super::socket::Cut;
use super::{Shared, Taken};
use crate::domain::ClientId;
use crate::protocol::Received;
use crate::telemetry::metrics;

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A connection. The broker's crate asks it what is allowed and tells it what happens, and both
/// only of this one connection.
pub(super) struct Link {
    shared: Arc<Shared>,
    peer: SocketAddr,
    /// The certificate's common name; none on the plain listener, where the peer is believed.
    certified: Option<ClientId>,
    cut: Cut,
    /// Set when it was authenticated.
    identity: OnceLock<Identity>,
    /// The packet loop has ended: what is authorised now is the will.
    closing: AtomicBool,
    /// The will comes later, unless the client is back by then.
    will_is_delayed: AtomicBool,
}

struct Identity {
    client: ClientId,
    generation: Generation,
    /// A 3.1.1 client cannot be told that a publish was refused.
    speaks_v5: bool,
    will: Option<Will>,
}

struct Will {
    topic: String,
    payload: Bytes,
    retain: bool,
    delay: Duration,
}

impl Link {
    pub fn new(
        shared: Arc<Shared>,
        peer: SocketAddr,
        certified: Option<ClientId>,
        cut: Cut,
    ) -> Self {
        Self {
            shared,
            peer,
            certified,
            cut,
            identity: OnceLock::new(),
            closing: AtomicBool::new(false),
            will_is_delayed: AtomicBool::new(false),
        }
    }

    /// The connection is over, however it went.
    pub fn ended(&self) {
        let Some(identity) = self.identity.get() else {
            return;
        };
        let shared = &self.shared;
        let client = &identity.client;
        let keep = shared.is_closed() || self.will_is_delayed.load(Ordering::Acquire);
        shared.presence.leave(client, identity.generation, || {
            if !keep {
                // Not awaited: nobody waits for it, and the recorder holds it.
                drop(shared.intake.ended(client.clone()));
            }
        });
    }

    fn refuse(&self, reason: &'static str, code: ReasonCode) -> AuthResult {
        metrics::refused(reason, &self.peer);
        AuthResult::fail(code)
    }

    fn admit(&self, connect: &ConnectPacket) -> AuthResult {
        let shared = &self.shared;
        if shared.is_closed() {
            return self.refuse("stopping", ReasonCode::ServerShuttingDown);
        }
        let Ok(client) = ClientId::new(&connect.client_id) else {
            return self.refuse("client_id", ReasonCode::ClientIdentifierNotValid);
        };
        if self.certified.as_ref().is_some_and(|name| *name != client) {
            return self.refuse("not_its_certificate", ReasonCode::NotAuthorized);
        }
        if !shared.attempts.take(&client) {
            return self.refuse("too_many_attempts", ReasonCode::ConnectionRateExceeded);
        }
        if shared.intake.is_full() {
            return self.refuse("database_stalled", ReasonCode::ServerBusy);
        }
        let will = connect.will.as_ref().map(|will| Will {
            topic: will.topic.clone(),
            payload: Bytes::from(will.payload.clone()),
            retain: will.retain,
            delay: will_delay(connect, will.properties.will_delay_interval),
        });
        if let Some(will) = &will
            && !shared.topics.may_publish(&client, &will.topic)
        {
            return self.refuse("will_topic", ReasonCode::NotAuthorized);
        }
        let identity = Identity {
            generation: shared.presence.enter(&client),
            speaks_v5: connect.protocol_version >= 5,
            will,
            client,
        };
        let name = identity.client.to_string();
        if self.identity.set(identity).is_err() {
            // The crate reads one CONNECT a connection.
            return self.refuse("second_connect", ReasonCode::ProtocolError);
        }
        AuthResult::success_with_user(name)
    }

    /// Whether the crate may go on with a publish to this topic.
    fn may_publish(&self, identity: &Identity, topic: &str) -> bool {
        if self.shared.topics.may_publish(&identity.client, topic) {
            return true;
        }
        metrics::refused("publish_topic", &identity.client);
        // A 3.1.1 client would be sent a PUBACK that it cannot read. It is let through here and
        // dropped in the hook.
        !identity.speaks_v5
    }

    /// The will is about to be published. True if the broker should route and retain it, too.
    fn will_fires(&self, identity: &Identity) -> bool {
        let Some(will) = &identity.will else {
            return false;
        };
        if self.shared.is_closed() {
            return false;
        }
        let taken = self.take_in(identity, &will.topic, will.payload.clone(), will.retain);
        if taken.is_some() && self.will_is_delayed.load(Ordering::Acquire) {
            let shared = &self.shared;
            let client = &identity.client;
            shared
                .presence
                .if_absent(client, || drop(shared.intake.ended(client.clone())));
        }
        taken.is_some()
    }

    /// Hands a message on, unless a newer connection of the client is alive.
    fn take_in(
        &self,
        identity: &Identity,
        topic: &str,
        payload: Bytes,
        retain: bool,
    ) -> Option<Taken> {
        let shared = &self.shared;
        let message = Received {
            topic: topic.to_owned(),
            payload,
            retain,
            received: shared.clock.now(),
        };
        shared
            .presence
            .if_newest(&identity.client, identity.generation, || {
                shared.intake.message(message)
            })
    }

    async fn published(&self, event: ClientPublishEvent) -> PublishAction {
        let Some(identity) = self.identity.get() else {
            return PublishAction::Handled;
        };
        let shared = &self.shared;
        if !shared.topics.may_publish(&identity.client, &event.topic) {
            return PublishAction::Handled;
        }
        let taken = if shared.is_closed() {
            None
        } else {
            self.take_in(identity, &event.topic, event.payload, event.retain)
        };
        let durable = match taken {
            Some(taken) => {
                let wait = shared.settings.store_wait.get();
                tokio::time::timeout(wait, taken.durable())
                    .await
                    .unwrap_or(false)
            }
            None => false,
        };
        if !durable {
            metrics::severed(&identity.client);
            self.cut.cut();
        }
        // Nobody but us listens to clients, so only what is retained has to be routed.
        if event.retain && durable {
            PublishAction::Continue
        } else {
            PublishAction::Handled
        }
    }
}

/// A will waits for its delay or for the end of the session, whichever is sooner.
fn will_delay(connect: &ConnectPacket, delay: Option<u32>) -> Duration {
    let session = connect
        .properties
        .get_session_expiry_interval()
        .unwrap_or(0);
    Duration::from_secs(u64::from(delay.unwrap_or(0).min(session)))
}

impl AuthProvider for Link {
    fn authenticate<'a>(
        &'a self,
        connect: &'a ConnectPacket,
        _peer: SocketAddr,
    ) -> Answer<'a, mqtt5::error::Result<AuthResult>> {
        Box::pin(async { Ok(self.admit(connect)) })
    }

    fn authorize_publish<'a>(
        &'a self,
        _client: &str,
        _user: Option<&'a str>,
        topic: &'a str,
    ) -> Answer<'a, bool> {
        Box::pin(async move {
            let Some(identity) = self.identity.get() else {
                return false;
            };
            if self.closing.load(Ordering::Acquire) {
                self.will_fires(identity)
            } else {
                self.may_publish(identity, topic)
            }
        })
    }

    fn authorize_subscribe<'a>(
        &'a self,
        _client: &str,
        _user: Option<&'a str>,
        filter: &'a str,
    ) -> Answer<'a, bool> {
        Box::pin(async move {
            let Some(identity) = self.identity.get() else {
                return false;
            };
            let allowed = self.shared.topics.may_subscribe(&identity.client, filter);
            if !allowed {
                metrics::refused("subscribe_topic", &identity.client);
            }
            allowed
        })
    }

    /// The crate calls this between the packet loop and the will, and nowhere else.
    fn cleanup_session<'a>(&'a self, _user: &'a str) -> Answer<'a, ()> {
        Box::pin(async { self.closing.store(true, Ordering::Release) })
    }
}

impl BrokerEventHandler for Link {
    fn on_client_publish(&self, event: ClientPublishEvent) -> Answer<'_, PublishAction> {
        Box::pin(self.published(event))
    }

    fn on_client_disconnect(&self, event: ClientDisconnectEvent) -> Answer<'_, ()> {
        Box::pin(async move {
            let delayed = self
                .identity
                .get()
                .and_then(|identity| identity.will.as_ref())
                .is_some_and(|will| !will.delay.is_zero());
            self.will_is_delayed
                .store(event.unexpected && delayed, Ordering::Release);
        })
    }
}
