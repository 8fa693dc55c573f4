//! One client connection: authentication, topic authorization, and forwarding of its messages.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::future::BoxFuture;
use mqtt5::broker::events::{BrokerEventHandler, ClientPublishEvent, PublishAction};
use mqtt5::broker::{AuthProvider, AuthResult};
use mqtt5::packet::connect::ConnectPacket;
use mqtt5::types::ReasonCode;

use super::abortable_stream::KillSwitch;
use super::live_connections::Generation;
use super::rejection::RejectionReason;
use super::{BrokerState, PendingWrite};
use crate::domain::ClientId;
use crate::protocol::InboundMessage;
use crate::telemetry::metrics;

/// The authorizer and event handler that `mqtt5` calls for one connection.
pub(super) struct ClientSession {
    state: Arc<BrokerState>,
    peer: SocketAddr,
    /// The common name of the client certificate. `None` on the plain listener, which accepts any
    /// client ID.
    certificate_name: Option<ClientId>,
    kill_switch: KillSwitch,
    /// Set when the CONNECT packet is accepted.
    client: OnceLock<AuthenticatedClient>,
    /// Set when the packet loop of `mqtt5` has ended. From then on, `mqtt5` requests authorization
    /// only for the last will.
    packet_loop_ended: AtomicBool,
}

struct AuthenticatedClient {
    id: ClientId,
    generation: Generation,
    uses_mqtt_v5: bool,
    will: Option<Will>,
}

struct Will {
    topic: String,
    payload: Bytes,
}

impl ClientSession {
    pub fn new(
        state: Arc<BrokerState>,
        peer: SocketAddr,
        certificate_name: Option<ClientId>,
        kill_switch: KillSwitch,
    ) -> Self {
        Self {
            state,
            peer,
            certificate_name,
            kill_switch,
            client: OnceLock::new(),
            packet_loop_ended: AtomicBool::new(false),
        }
    }

    /// Unregisters the connection and reports a disconnect if it was the client's last connection.
    /// Repeated calls have no effect.
    pub fn close(&self) {
        let Some(client) = self.client.get() else {
            return;
        };
        let state = &self.state;
        state
            .live_connections
            .unregister(&client.id, client.generation, || {
                // At shutdown the broker closes the connection, and the client will reconnect.
                if !state.is_shutting_down() {
                    // Not awaited: the sink has accepted the event, and no PUBACK depends on it.
                    drop(state.sink.connection_closed(client.id.clone()));
                }
            });
    }

    fn reject(&self, reason: RejectionReason, code: ReasonCode) -> AuthResult {
        metrics::broker_rejection(reason.as_str(), &self.peer);
        AuthResult::fail(code)
    }

    /// Checks the CONNECT packet and registers the connection.
    fn admit(&self, connect: &ConnectPacket) -> AuthResult {
        let state = &self.state;
        if state.is_shutting_down() {
            return self.reject(
                RejectionReason::ShuttingDown,
                ReasonCode::ServerShuttingDown,
            );
        }
        let Ok(id) = ClientId::new(&connect.client_id) else {
            return self.reject(
                RejectionReason::InvalidClientId,
                ReasonCode::ClientIdentifierNotValid,
            );
        };
        if self.certificate_name.as_ref().is_some_and(|cn| *cn != id) {
            return self.reject(RejectionReason::CnMismatch, ReasonCode::NotAuthorized);
        }
        if state.connect_limiter.check(&id).is_err() {
            return self.reject(
                RejectionReason::RateLimited,
                ReasonCode::ConnectionRateExceeded,
            );
        }
        if state.sink.is_overloaded() {
            return self.reject(RejectionReason::Overloaded, ReasonCode::ServerBusy);
        }
        let will = connect.will.as_ref().map(|will| Will {
            topic: will.topic.clone(),
            payload: Bytes::from(will.payload.clone()),
        });
        if let Some(will) = &will
            && !state.topics.may_publish(&id, &will.topic)
        {
            return self.reject(
                RejectionReason::ForbiddenWillTopic,
                ReasonCode::NotAuthorized,
            );
        }
        let client = AuthenticatedClient {
            generation: state.live_connections.register(&id),
            uses_mqtt_v5: connect.protocol_version >= 5,
            will,
            id,
        };
        let user = client.id.to_string();
        if self.client.set(client).is_err() {
            // `mqtt5` authenticates one CONNECT packet per connection, so this is not expected.
            return self.reject(RejectionReason::RepeatedConnect, ReasonCode::ProtocolError);
        }
        AuthResult::success_with_user(user)
    }

    /// Returns whether `mqtt5` may continue to process a publish to this topic.
    fn authorize(&self, client: &AuthenticatedClient, topic: &str) -> bool {
        if self.state.topics.may_publish(&client.id, topic) {
            return true;
        }
        metrics::broker_rejection(RejectionReason::ForbiddenPublishTopic.as_str(), &client.id);
        // `mqtt5` rejects with a PUBACK that carries a reason code, which MQTT 3.1.1 clients cannot
        // parse. For these clients the publish continues, and `on_publish` discards it.
        !client.uses_mqtt_v5
    }

    /// Forwards the last will. `mqtt5` publishes it when the connection ends, or after its delay.
    fn forward_will(&self, client: &AuthenticatedClient) {
        if let Some(will) = &client.will
            && !self.state.is_shutting_down()
        {
            // Not awaited: the sink has accepted the message, and no PUBACK depends on it.
            drop(self.forward(client, &will.topic, will.payload.clone()));
        }
    }

    /// Forwards a message to the sink, unless the client has a newer connection.
    fn forward(
        &self,
        client: &AuthenticatedClient,
        topic: &str,
        payload: Bytes,
    ) -> Option<PendingWrite> {
        let state = &self.state;
        let message = InboundMessage {
            topic: topic.to_owned(),
            payload,
            // The embedded broker neither stores nor replays retained messages of clients, so the
            // retain flag of the publish has no meaning here.
            retained: false,
            operator_replay: false,
            received_at: state.clock.now(),
            truncated: None,
        };
        state
            .live_connections
            .unless_superseded(&client.id, client.generation, || {
                state.sink.message_received(message)
            })
    }

    /// Waits until the message is durable. Aborts the connection if the write fails or takes too
    /// long, because `mqtt5` would otherwise acknowledge the message.
    async fn on_publish(&self, event: ClientPublishEvent) -> PublishAction {
        let Some(client) = self.client.get() else {
            return PublishAction::Handled;
        };
        let state = &self.state;
        if !state.topics.may_publish(&client.id, &event.topic) {
            return PublishAction::Handled;
        }
        let write = if state.is_shutting_down() {
            None
        } else {
            self.forward(client, &event.topic, event.payload)
        };
        let durable = match write {
            Some(write) => {
                let timeout = state.settings.ack_timeout.get();
                tokio::time::timeout(timeout, write.durable())
                    .await
                    .unwrap_or(false)
            }
            None => false,
        };
        if !durable {
            metrics::connection_aborted(&client.id);
            self.kill_switch.abort();
        }
        // `Handled` stops `mqtt5` from routing or retaining the message. Only the sink receives
        // messages of clients.
        PublishAction::Handled
    }
}

impl Drop for ClientSession {
    /// Closes the session even if its task panicked or was aborted. A connection that stays
    /// registered would keep its client connected forever.
    fn drop(&mut self) {
        self.close();
    }
}

impl AuthProvider for ClientSession {
    fn authenticate<'a>(
        &'a self,
        connect: &'a ConnectPacket,
        _peer: SocketAddr,
    ) -> BoxFuture<'a, mqtt5::error::Result<AuthResult>> {
        Box::pin(async { Ok(self.admit(connect)) })
    }

    fn authorize_publish<'a>(
        &'a self,
        _client: &str,
        _user: Option<&'a str>,
        topic: &'a str,
    ) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let Some(client) = self.client.get() else {
                return false;
            };
            if self.packet_loop_ended.load(Ordering::Acquire) {
                self.forward_will(client);
                false
            } else {
                self.authorize(client, topic)
            }
        })
    }

    fn authorize_subscribe<'a>(
        &'a self,
        _client: &str,
        _user: Option<&'a str>,
        filter: &'a str,
    ) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let Some(client) = self.client.get() else {
                return false;
            };
            let allowed = self.state.topics.may_subscribe(&client.id, filter);
            if !allowed {
                let reason = RejectionReason::ForbiddenSubscribeTopic;
                metrics::broker_rejection(reason.as_str(), &client.id);
            }
            allowed
        })
    }

    /// `mqtt5` calls this only between the packet loop and the publication of the last will.
    fn cleanup_session<'a>(&'a self, _user: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async { self.packet_loop_ended.store(true, Ordering::Release) })
    }
}

impl BrokerEventHandler for ClientSession {
    fn on_client_publish(&self, event: ClientPublishEvent) -> BoxFuture<'_, PublishAction> {
        Box::pin(self.on_publish(event))
    }
}
