//! The publisher, which sends messages to clients (roles `api` and `record`).

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::FutureExt as _;

use super::build_context::BuildContext;
use super::roles::Role;
use broker::Broker;
use delivery::{
    ClientPublisher, EmbeddedPublisher, MqttPublisher, PendingResponses, publish_handshake_errors,
};
use domain::Clock;
use mqtt::{ConnectOptions, IncomingMessage, OnMessage, ReconnectingClient, SessionKind};
use pipeline::record::HandshakeErrorReceiver;
use protocol::{InboundMessage, TopicScheme};
use service::{Health, TaskGroup};

/// Name of the publisher's MQTT connection in the response of `/readiness`.
const COMPONENT: &str = "mqtt_api";

/// The publisher and its connection.
pub(super) struct Publishing {
    pub publisher: Arc<dyn ClientPublisher>,
    /// The connection to the external broker. `None` with the embedded broker.
    pub connection: Option<ReconnectingClient>,
    affects_readiness: bool,
}

impl Publishing {
    /// Creates the publisher. It publishes through `broker`, or through the external broker if
    /// `broker` is `None`.
    pub fn new(context: &BuildContext<'_>, broker: Option<&Broker>) -> Result<Self> {
        // Without the role `api`, this connection only publishes handshake errors, and recording
        // continues even if it cannot publish them. So only the role `api` adds a health check.
        let affects_readiness = context.has_role(Role::Api);
        if let Some(broker) = broker {
            return Ok(Self {
                publisher: Arc::new(EmbeddedPublisher::new(broker.clone())),
                connection: None,
                affects_readiness,
            });
        }
        let connection = connect_to_external_broker(context)?;
        Ok(Self {
            publisher: Arc::new(MqttPublisher::new(connection.clone())),
            connection: Some(connection),
            affects_readiness,
        })
    }

    pub fn add_health_check(&self, health: &Health) {
        if let Some(connection) = self.connection.clone()
            && self.affects_readiness
        {
            health.add_check(COMPONENT, move || {
                let connection_health = connection.health();
                async move { connection_health }.boxed()
            });
        }
    }
}

/// Creates the MQTT client that publishes messages and receives responses.
fn connect_to_external_broker(context: &BuildContext<'_>) -> Result<ReconnectingClient> {
    let client_id = format!("cloud-connector-out-{}", uuid::Uuid::new_v4().simple());
    let options = ConnectOptions::from_config(&context.config.mqtt, &client_id, SessionKind::Clean);
    let on_message = match_responses(context.responses.clone(), context.clock.clone());
    Ok(ReconnectingClient::new(options, on_message)?)
}

/// Returns a callback that passes each received message to the requests that wait for a response.
fn match_responses(responses: PendingResponses, clock: Arc<dyn Clock>) -> OnMessage {
    Arc::new(move |message: IncomingMessage| {
        responses.on_message(&InboundMessage {
            topic: message.topic,
            payload: message.payload,
            retained: message.retain,
            is_operator_replay: false,
            received_at: clock.now(),
            ingest_stamp: None,
            truncated_from: None,
        });
    })
}

/// Publishes the handshake errors of the recorder to the clients.
pub(super) struct HandshakeErrors {
    receiver: HandshakeErrorReceiver,
    publisher: Arc<dyn ClientPublisher>,
    topics: TopicScheme,
    clock: Arc<dyn Clock>,
    ack_timeout: Duration,
}

impl HandshakeErrors {
    pub fn new(
        context: &BuildContext<'_>,
        receiver: HandshakeErrorReceiver,
        publishing: &Publishing,
    ) -> Self {
        Self {
            receiver,
            publisher: publishing.publisher.clone(),
            topics: context.topics.clone(),
            clock: context.clock.clone(),
            ack_timeout: context.config.mqtt.publish_timeout.get(),
        }
    }

    pub async fn publish(self, tasks: TaskGroup) {
        publish_handshake_errors(
            self.receiver,
            self.publisher,
            self.topics,
            self.clock,
            self.ack_timeout,
            tasks,
        )
        .await;
    }
}
