//! One connection of one client: who it is, what it may do, and what becomes of its messages.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use mqtt5::broker::events::{BrokerEventHandler, ClientPublishEvent, PublishAction};
use mqtt5::broker::{AuthProvider, AuthResult};
use mqtt5::packet::connect::ConnectPacket;
use mqtt5::types::ReasonCode;

use super::abortable_stream::KillSwitch;
use super::live_connections::Generation;
use super::{BrokerState, Receipt};
use crate::domain::ClientId;
use crate::protocol::InboundMessage;
use crate::telemetry::metrics;

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A connection. The broker's crate asks it what is allowed and tells it what happens, and both
/// only of this one connection.
pub(super) struct ClientSession {
    shared: Arc<BrokerState>,
    peer: SocketAddr,
    /// The certificate's common name; none on the plain listener, where the peer is believed.
    certified: Option<ClientId>,
    cut: KillSwitch,
    /// Set when it was authenticated.
    identity: OnceLock<Identity>,
    /// The packet loop has ended: what is authorised now is the will.
    closing: AtomicBool,
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
}

impl ClientSession {
    pub fn new(
        shared: Arc<BrokerState>,
        peer: SocketAddr,
        certified: Option<ClientId>,
        cut: KillSwitch,
    ) -> Self {
        Self {
            shared,
            peer,
            certified,
            cut,
            identity: OnceLock::new(),
            closing: AtomicBool::new(false),
        }
    }

    /// The connection is over, however it went. The second call does nothing.
    pub fn ended(&self) {
        let Some(identity) = self.identity.get() else {
            return;
        };
        let shared = &self.shared;
        let client = &identity.client;
        shared.presence.leave(client, identity.generation, || {
            // While stopping it is not the client that leaves. Not awaited: nobody waits for it,
            // and the recorder holds it.
            if !shared.is_closed() {
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
        if shared.attempts.take(&client).is_err() {
            return self.refuse("too_many_attempts", ReasonCode::ConnectionRateExceeded);
        }
        if shared.intake.is_full() {
            return self.refuse("database_stalled", ReasonCode::ServerBusy);
        }
        let will = connect.will.as_ref().map(|will| Will {
            topic: will.topic.clone(),
            payload: Bytes::from(will.payload.clone()),
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

    /// The will is about to be published: at the end of the connection, or after its delay.
    fn will_fires(&self, identity: &Identity) {
        if let Some(will) = &identity.will
            && !self.shared.is_closed()
        {
            // Not awaited: nobody waits for it, and the recorder holds it.
            drop(self.take_in(identity, &will.topic, will.payload.clone()));
        }
    }

    /// Hands a message on, unless a newer connection of the client is alive.
    fn take_in(&self, identity: &Identity, topic: &str, payload: Bytes) -> Option<Receipt> {
        let shared = &self.shared;
        let message = InboundMessage {
            topic: topic.to_owned(),
            payload,
            // The retain flag of a client's own publish: said now, and nothing is kept here.
            replayed: false,
            again: false,
            received: shared.clock.now(),
            cut: None,
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
            self.take_in(identity, &event.topic, event.payload)
        };
        let durable = match taken {
            Some(taken) => {
                let wait = shared.settings.ack_timeout.get();
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
        // Never routed and never retained: nobody but us listens to clients.
        PublishAction::Handled
    }
}

impl Drop for ClientSession {
    /// Also when its task was dropped or panicked: a connection that is left in the books would
    /// keep its client connected for ever.
    fn drop(&mut self) {
        self.ended();
    }
}

impl AuthProvider for ClientSession {
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
                self.will_fires(identity);
                false
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

impl BrokerEventHandler for ClientSession {
    fn on_client_publish(&self, event: ClientPublishEvent) -> Answer<'_, PublishAction> {
        Box::pin(self.published(event))
    }
}
