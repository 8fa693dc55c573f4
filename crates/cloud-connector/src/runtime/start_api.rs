//! Creates the HTTP router, and starts the publisher that sends messages to clients.

use std::sync::Arc;

use anyhow::Result;
use futures::FutureExt as _;

use super::{App, Role, account_translator};
use crate::config::Config;
use api::{self, Keys, ProbeState};
use delivery::{
    ClientPublisher, Delivery, EmbeddedPublisher, MqttPublisher, PendingResponses,
    publish_handshake_errors,
};
use domain::Clock;
use mqtt::{ConnectOptions, IncomingMessage, ReconnectingClient, SessionKind};
use pipeline::record::HandshakeErrorReceiver;
use protocol::{InboundMessage, TopicScheme};
use service::health::Component;
use service::metrics::prometheus_handle;

/// Maximum packet size that the MQTT specification allows.
const MQTT_MAX_PACKET_BYTES: usize = 256 * 1024 * 1024;

impl App {
    /// Creates the HTTP router, and starts the publisher if this process publishes messages.
    ///
    /// With the role `api`, the router serves the API, probes and metrics. Otherwise it serves only
    /// probes and metrics.
    pub(super) fn start_api(
        &self,
        config: &Config,
        handshake_errors: Option<HandshakeErrorReceiver>,
        topics: TopicScheme,
        responses: PendingResponses,
        keys: Keys,
        clock: &Arc<dyn Clock>,
    ) -> Result<api::Router> {
        let has_api_role = self.has_role(Role::Api);
        if !has_api_role && handshake_errors.is_none() {
            return Ok(api::probe_router(self.probe_state(), &config.http));
        }
        let publisher = self.start_publisher(config, &responses, clock)?;
        if let Some(handshake_errors) = handshake_errors {
            self.background_tasks.spawn(publish_handshake_errors(
                handshake_errors,
                publisher.clone(),
                topics.clone(),
                clock.clone(),
                self.background_tasks.clone(),
            ));
        }
        if !has_api_role {
            return Ok(api::probe_router(self.probe_state(), &config.http));
        }
        let state = api::ApiState::new(
            self.store.clone(),
            Delivery::new(publisher, responses, topics, clock.clone()),
            clock.clone(),
            keys,
            account_translator(config)?,
            &config.api,
        );
        Ok(api::router(state, self.probe_state(), &config.http))
    }

    fn start_publisher(
        &self,
        config: &Config,
        responses: &PendingResponses,
        clock: &Arc<dyn Clock>,
    ) -> Result<Arc<dyn ClientPublisher>> {
        let timeout = config.mqtt.publish_timeout.get();
        if let Some(broker) = &self.broker {
            return Ok(Arc::new(EmbeddedPublisher::new(broker.clone(), timeout)));
        }
        let client_id = format!("cloud-connector-out-{}", uuid::Uuid::new_v4().simple());
        let mut options = ConnectOptions::from_config(&config.mqtt, &client_id, SessionKind::Clean);
        // The MQTT client closes the connection when it receives a packet over the limit. This
        // connection publishes the messages of all callers, and one large response must not close
        // it. Therefore the limit is the largest packet size that MQTT allows.
        options.max_packet_size = MQTT_MAX_PACKET_BYTES;
        let (responses, clock) = (responses.clone(), clock.clone());
        let on_message = Arc::new(move |message: IncomingMessage| {
            responses.on_message(&InboundMessage {
                topic: message.topic,
                payload: message.payload,
                retained: message.retain,
                is_operator_replay: false,
                received_at: clock.now(),
                truncated_from: None,
            });
        });
        let connection = ReconnectingClient::start(options, on_message, &self.publisher_tasks)?;
        // Without the role `api`, this connection only publishes handshake errors, and recording
        // continues even if it cannot publish them. So only the role `api` adds a health check.
        if self.has_role(Role::Api) {
            let checked_connection = connection.clone();
            self.health.add_check(Component::MqttApi, move || {
                let health = checked_connection.health();
                async move { health }.boxed()
            });
        }
        Ok(Arc::new(MqttPublisher::new(connection, timeout)))
    }

    pub(super) fn probe_state(&self) -> ProbeState {
        ProbeState {
            health: self.health.clone(),
            render_metrics: || prometheus_handle().render(),
        }
    }
}
