//! Handles one client connection: authenticates the client, authorizes topics, and forwards
//! messages to the sink.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::future::BoxFuture;
use mqtt5::broker::events::{
    BrokerEventHandler, ClientDisconnectEvent, ClientPublishEvent, PublishAction,
};
use mqtt5::broker::{AuthProvider, AuthResult};
use mqtt5::packet::connect::ConnectPacket;
use mqtt5::types::ReasonCode;

use super::live_connections::{ClientLimits, Generation};
use super::rejection::{RejectedPeer, RejectionReason};
use super::stream_handle::{LargePayload, StreamHandle};
use super::{BrokerState, PendingWrite, metrics};
use domain::{ClientId, OfflineReason};
use protocol::{ClientMessage, InboundMessage, OriginalPayload};

/// Client ids with this prefix are reserved by `mqtt5`.
const RESERVED_CLIENT_ID_PREFIX: &str = "cert:";

/// The authorizer and event handler that `mqtt5` calls for one connection.
pub(super) struct ClientSession {
    state: Arc<BrokerState>,
    peer: SocketAddr,
    /// The common name of the client certificate. `None` for a connection to the plain listener,
    /// which accepts any client id.
    certificate_name: Option<ClientId>,
    stream: StreamHandle,
    /// The client of this connection. Set when the CONNECT packet is accepted.
    client: OnceLock<AuthenticatedClient>,
    /// Whether the packet loop of `mqtt5` has ended. After the loop, `mqtt5` requests authorization
    /// only for the last will.
    has_packet_loop_ended: AtomicBool,
    /// Whether the client has closed the connection with a DISCONNECT packet that does not request
    /// the last will.
    has_disconnected_cleanly: AtomicBool,
}

struct AuthenticatedClient {
    id: ClientId,
    generation: Generation,
    uses_mqtt_v5: bool,
    /// Whether this connection has replaced another connection of the client, and has not yet forwarded a
    /// message.
    is_new_takeover: AtomicBool,
    /// The last will, if it is an offline message. The broker does not publish other last wills.
    offline_will: Option<LastWill>,
}

struct LastWill {
    topic: String,
    payload: Bytes,
}

impl ClientSession {
    pub fn new(
        state: Arc<BrokerState>,
        peer: SocketAddr,
        certificate_name: Option<ClientId>,
        stream: StreamHandle,
    ) -> Self {
        Self {
            state,
            peer,
            certificate_name,
            stream,
            client: OnceLock::new(),
            has_packet_loop_ended: AtomicBool::new(false),
            has_disconnected_cleanly: AtomicBool::new(false),
        }
    }

    /// Unregisters the connection. If the client has no other connection, reports a disconnect
    /// to the sink. Repeated calls have no effect.
    pub fn close(&self) {
        // `mqtt5` does not process the packet any more, but keeps this session until it has
        // published a last will with a delay.
        self.stream.discard_large_payload();
        let Some(client) = self.client.get() else {
            return;
        };
        let state = &self.state;
        let reason = if self.has_disconnected_cleanly.load(Ordering::Acquire) {
            OfflineReason::Client
        } else {
            OfflineReason::Will
        };
        let report = |reason| {
            // At shutdown, the broker closes all connections, and the clients reconnect later.
            // Therefore these disconnects are not reported.
            if !state.is_shutting_down() {
                // The write is not awaited, because no PUBACK depends on it.
                drop(state.sink.on_client_disconnected(client.id.clone(), reason));
            }
        };
        state
            .live_connections
            .unregister(&client.id, client.generation, reason, report);
    }

    /// Checks the CONNECT packet. Returns the client id.
    pub fn check_connect(&self, connect: &ConnectPacket) -> Result<ClientId, RejectionReason> {
        let state = &self.state;
        if state.is_shutting_down() {
            return Err(RejectionReason::ShuttingDown);
        }
        if connect.properties.get_authentication_method().is_some() {
            return Err(RejectionReason::UnsupportedAuthentication);
        }
        // MQTT allows an empty client id: the broker then assigns an id. This broker does not, because
        // the id identifies the client's topics and its certificate.
        let client_id =
            ClientId::new(&connect.client_id).map_err(|_| RejectionReason::InvalidClientId)?;
        if !mqtt5::is_path_safe_client_id(client_id.as_str())
            || client_id.as_str().starts_with(RESERVED_CLIENT_ID_PREFIX)
        {
            return Err(RejectionReason::InvalidClientId);
        }
        let certificate_name = self.certificate_name.as_ref();
        if certificate_name.is_some_and(|name| *name != client_id) {
            return Err(RejectionReason::CnMismatch);
        }
        if state.connect_rate_limiter.take_token(&client_id).is_err() {
            return Err(RejectionReason::RateLimited);
        }
        if state.sink.is_overloaded() {
            return Err(RejectionReason::Overloaded);
        }
        if let Some(will) = &connect.will
            && !state.topics.may_publish(&client_id, &will.topic)
        {
            return Err(RejectionReason::ForbiddenWillTopic);
        }
        Ok(client_id)
    }

    /// Registers the connection, after [`ClientSession::check_connect`] has accepted the CONNECT
    /// packet.
    fn register(&self, connect: &ConnectPacket) -> AuthResult {
        let state = &self.state;
        let Ok(id) = ClientId::new(&connect.client_id) else {
            return AuthResult::fail(ReasonCode::ClientIdentifierNotValid);
        };
        let connections = &state.live_connections;
        let limits = ClientLimits {
            max_packet_size: connect.properties.get_maximum_packet_size(),
        };
        let registration = connections.register(&id, self.peer, self.stream.clone(), limits);
        if let Some(replaced) = &registration.replaced {
            state.takeovers.record(&id, self.peer, replaced);
        }
        let user_name = id.to_string();
        let client = AuthenticatedClient {
            generation: registration.generation,
            uses_mqtt_v5: connect.protocol_version >= 5,
            is_new_takeover: AtomicBool::new(registration.replaced.is_some()),
            offline_will: self.offline_will(connect),
            id,
        };
        if self.client.set(client).is_err() {
            // A second CONNECT packet is not expected here, because `mqtt5` authenticates only one
            // CONNECT packet per connection.
            return AuthResult::fail(ReasonCode::ProtocolError);
        }
        AuthResult::success_with_user(user_name)
    }

    /// Reports that the broker rejected something that this connection requested.
    fn report_rejection(&self, reason: RejectionReason, client_id: &str) {
        let peer = RejectedPeer {
            address: self.peer,
            certificate_name: self.certificate_name.as_ref(),
            client_id: Some(client_id),
        };
        self.state.rejections.report(reason, peer);
    }

    /// Returns the last will if it is an offline message.
    ///
    /// A last will may only end a connection. The broker publishes a last will after the connection
    /// has ended. Any other message, such as an online message or a heartbeat, would then record the
    /// client as connected.
    fn offline_will(&self, connect: &ConnectPacket) -> Option<LastWill> {
        let will = connect.will.as_ref()?;
        let payload = Bytes::copy_from_slice(&will.payload);
        let message = self.inbound_message(&will.topic, payload.clone(), None);
        let topic = self.state.topics.parse(&will.topic)?;
        let decoded = protocol::decode(topic.channel, &message);
        if !matches!(decoded, Ok(ClientMessage::Offline { .. })) {
            self.report_rejection(RejectionReason::WillNotOffline, &connect.client_id);
            return None;
        }
        Some(LastWill {
            topic: message.topic,
            payload,
        })
    }

    /// Returns whether `mqtt5` should continue to process a publish to `topic`.
    fn authorize_topic(&self, client: &AuthenticatedClient, topic: &str) -> bool {
        if self.state.topics.may_publish(&client.id, topic) {
            return true;
        }
        self.report_rejection(RejectionReason::ForbiddenPublishTopic, client.id.as_str());
        // `mqtt5` rejects a publish with a PUBACK that contains a reason code. MQTT 3.1.1 clients
        // cannot parse this PUBACK. For these clients the publish continues, and `on_publish`
        // discards the message.
        !client.uses_mqtt_v5
    }

    /// Forwards the last will to the sink if it is an offline message, unless the broker is shutting
    /// down. Called when `mqtt5` publishes the last will: when the connection ends, or after the will delay.
    fn forward_last_will(&self, client: &AuthenticatedClient) {
        if let Some(last_will) = &client.offline_will
            && !self.state.is_shutting_down()
        {
            let message = InboundMessage {
                is_last_will: Some(true),
                ..self.inbound_message(&last_will.topic, last_will.payload.clone(), None)
            };
            // The write is not awaited, because no PUBACK depends on it.
            drop(self.forward_message(client, message));
        }
    }

    /// Forwards a message to the sink. Returns `None`, without forwarding the message, if the
    /// client has a newer connection.
    fn forward_message(
        &self,
        client: &AuthenticatedClient,
        message: InboundMessage,
    ) -> Option<PendingWrite> {
        let state = &self.state;
        // Prepared before the lock is acquired, because decoding a large message takes long.
        let prepared_message = state.sink.prepare(message);
        state
            .live_connections
            .run_unless_superseded(&client.id, client.generation, || prepared_message.submit())
    }

    fn inbound_message(
        &self,
        topic: &str,
        payload: Bytes,
        truncated_from: Option<OriginalPayload>,
    ) -> InboundMessage {
        InboundMessage {
            topic: topic.to_owned(),
            payload,
            // The embedded broker does not store retained messages. Therefore this message is not a
            // replay of a retained message.
            retained: false,
            is_operator_replay: false,
            is_last_will: Some(false),
            is_takeover: false,
            received_at: self.state.clock.now(),
            ingest_stamp: None,
            truncated_from,
        }
    }

    /// Forwards the message to the sink and waits until the message is durable. If the write fails
    /// or takes too long, aborts the connection. Otherwise `mqtt5` would acknowledge the message.
    async fn on_publish(&self, event: ClientPublishEvent) -> PublishAction {
        let (payload, truncated_from, reservation) = match self.stream.take_large_payload() {
            Some(LargePayload {
                payload,
                truncated_from,
                reservation,
            }) => (payload, truncated_from, Some(reservation)),
            None => (event.payload, None, None),
        };
        let Some(client) = self.client.get() else {
            return PublishAction::Handled;
        };
        let state = &self.state;
        if !state.topics.may_publish(&client.id, &event.topic) {
            return PublishAction::Handled;
        }
        let pending_write = if state.is_shutting_down() {
            None
        } else {
            let message = InboundMessage {
                is_takeover: client.is_new_takeover.swap(false, Ordering::AcqRel),
                ..self.inbound_message(&event.topic, payload, truncated_from)
            };
            self.forward_message(client, message)
        };
        // The sink has its own reservation for the message.
        drop(reservation);
        let is_durable = match pending_write {
            Some(pending_write) => {
                let timeout = state.settings.ack_timeout.get();
                tokio::time::timeout(timeout, pending_write.wait_until_durable())
                    .await
                    .unwrap_or(false)
            }
            None => false,
        };
        if !is_durable {
            metrics::count_aborted_connection(&client.id);
            self.stream.abort();
        }
        // `Handled` prevents `mqtt5` from routing or retaining the message. Only the sink receives
        // the messages from clients.
        PublishAction::Handled
    }
}

impl Drop for ClientSession {
    /// Closes the session even if its task panicked or was aborted. Otherwise the connection would
    /// remain registered, and its client would be recorded as connected forever.
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
        Box::pin(async { Ok(self.register(connect)) })
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
            if self.has_packet_loop_ended.load(Ordering::Acquire) {
                self.forward_last_will(client);
                false
            } else {
                self.authorize_topic(client, topic)
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
            let is_allowed = self.state.topics.may_subscribe(&client.id, filter);
            if !is_allowed {
                let reason = RejectionReason::ForbiddenSubscribeTopic;
                self.report_rejection(reason, client.id.as_str());
            }
            is_allowed
        })
    }

    /// Records that the packet loop has ended. `mqtt5` calls this method only after the packet loop
    /// and before it publishes the last will.
    fn cleanup_session<'a>(&'a self, _user: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async { self.has_packet_loop_ended.store(true, Ordering::Release) })
    }
}

impl BrokerEventHandler for ClientSession {
    fn on_client_publish(&self, event: ClientPublishEvent) -> BoxFuture<'_, PublishAction> {
        Box::pin(self.on_publish(event))
    }

    /// Records how the connection ended. `mqtt5` calls this method at the end of each connection that
    /// was accepted, after it has published a last will without delay. `unexpected` is false only
    /// after a DISCONNECT packet, unless its reason code is 0x04 (disconnect with will message).
    fn on_client_disconnect(&self, event: ClientDisconnectEvent) -> BoxFuture<'_, ()> {
        self.has_disconnected_cleanly
            .store(!event.unexpected, Ordering::Release);
        Box::pin(async {})
    }
}

#[cfg(test)]
pub(crate) mod tests;
