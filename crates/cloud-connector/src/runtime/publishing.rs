//! The publisher, which sends messages to clients (roles `api` and `record`).

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::FutureExt as _;

use super::build_context::BuildContext;
use super::roles::Role;
use broker::Broker;
use delivery::{
    ClientPublisher, EmbeddedPublisher, MqttPublisher, ResponseReceiver, publish_handshake_errors,
};
use domain::Clock;
use mqtt::{ConnectOptions, MessageReaction, OnMessage, ReconnectingClient, SessionKind};
use pipeline::record::HandshakeErrorReceiver;
use protocol::TopicScheme;
use service::{Health, TaskGroup};

/// Name of the connection that publishes messages in the response of `/readiness`.
const PUBLISHING_COMPONENT: &str = "mqtt_api";
/// Name of the connection that receives responses in the response of `/readiness`.
const RESPONSES_COMPONENT: &str = "mqtt_responses";

/// The publisher and its connections.
pub(super) struct Publishing {
    pub publisher: Arc<dyn ClientPublisher>,
    /// The connections to the external broker. Empty with the embedded broker.
    pub connections: Vec<PublisherConnection>,
}

/// A connection of the publisher to the external broker.
pub(super) struct PublisherConnection {
    pub client: ReconnectingClient,
    /// Name of the task that runs the connection.
    pub task_name: &'static str,
    /// Name of the connection in the response of `/readiness`. `None` if the connection does not affect
    /// readiness.
    component: Option<&'static str>,
}

impl Publishing {
    /// Creates the publisher. It publishes through `broker`, or through the external broker if
    /// `broker` is `None`.
    pub fn new(context: &BuildContext<'_>, broker: Option<&Broker>) -> Result<Self> {
        if let Some(broker) = broker {
            return Ok(Self {
                publisher: Arc::new(EmbeddedPublisher::new(broker.clone())),
                connections: Vec::new(),
            });
        }
        // Without the role `api`, the process only publishes handshake errors, and recording continues
        // even if it cannot publish them. So only the role `api` adds a health check, and only the role
        // `api` sends requests.
        let has_api = context.has_role(Role::Api);
        let publishing = connect_to_external_broker(context, "out", ignore_messages())?;
        let responses = has_api
            .then(|| connect_to_external_broker(context, "responses", receive_responses(context)))
            .transpose()?;
        let mut connections = vec![PublisherConnection {
            client: publishing.clone(),
            task_name: "mqtt_publisher",
            component: has_api.then_some(PUBLISHING_COMPONENT),
        }];
        connections.extend(responses.clone().map(|client| PublisherConnection {
            client,
            task_name: "mqtt_responses",
            component: Some(RESPONSES_COMPONENT),
        }));
        Ok(Self {
            publisher: Arc::new(MqttPublisher::new(publishing, responses)),
            connections,
        })
    }

    pub fn add_health_checks(&self, health: &Health) {
        for connection in &self.connections {
            if let Some(component) = connection.component {
                let client = connection.client.clone();
                health.add_check(component, move || {
                    let connection_health = client.health();
                    async move { connection_health }.boxed()
                });
            }
        }
    }
}

/// Creates an MQTT client. `purpose` is a part of its client id.
fn connect_to_external_broker(
    context: &BuildContext<'_>,
    purpose: &str,
    on_message: OnMessage,
) -> Result<ReconnectingClient> {
    let unique_id = uuid::Uuid::new_v4().simple();
    let client_id = format!("cloud-connector-{purpose}-{unique_id}");
    let options = ConnectOptions::from_config(&context.config.mqtt, &client_id, SessionKind::Clean);
    Ok(ReconnectingClient::new(options, on_message)?)
}

/// Returns the callback of a connection without subscriptions.
fn ignore_messages() -> OnMessage {
    Arc::new(|_| MessageReaction::Continue)
}

/// Returns a callback that passes each received message to the requests that wait for a response.
fn receive_responses(context: &BuildContext<'_>) -> OnMessage {
    let receiver = ResponseReceiver::new(
        context.responses.clone(),
        context.topics.clone(),
        context.clock.clone(),
        context.config.client_budget,
    );
    Arc::new(move |message| receiver.on_message(message))
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
