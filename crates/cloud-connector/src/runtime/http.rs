//! The HTTP servers: API, probes and metrics.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::net::TcpListener;

use super::account_translator;
use super::build_context::BuildContext;
use super::live_status::{LiveClients, LiveStatus};
use super::publishing::Publishing;
use super::roles::Role;
use super::startup_resources::HttpListeners;
use api::{
    ApiDeps, ApiState, EventDeps, Keys, ListBrokerRejections, LookupRetries, ProbeState, Router,
};
use broker::Broker;
use delivery::{Delivery, TrackedDelivery};
use network::tls_server::ServerTls;
use service::Health;
use service::metrics::prometheus_handle;
use store::{ClientRepository, ConnectionRepository};

/// The HTTP servers of the process, and the certificates that they use.
pub(super) struct HttpServers {
    pub servers: Vec<HttpServer>,
    /// The certificates of the API server. `None` if the server does not use TLS.
    pub tls: Option<Arc<ServerTls>>,
    pub tls_reload_interval: Duration,
}

/// An HTTP server on one listener.
pub(super) struct HttpServer {
    /// Name of the task that runs the server.
    pub task_name: &'static str,
    pub listener: TcpListener,
    pub tls: Option<Arc<ServerTls>>,
    pub router: Router,
}

impl HttpServers {
    /// Creates the servers. With the role `api`, the main server serves the API, probes and
    /// metrics. Otherwise it serves only probes and metrics.
    pub fn new(
        context: &BuildContext<'_>,
        listeners: HttpListeners,
        publishing: Option<&Publishing>,
        broker: Option<&Broker>,
        keys: Keys,
        health: &Health,
    ) -> Result<Self> {
        let settings = &context.config.http;
        let probes = ProbeState {
            health: health.clone(),
            render_metrics: || prometheus_handle().render(),
        };
        let router = match publishing {
            Some(publishing) if context.has_role(Role::Api) => api::router(
                api_state(context, publishing, broker, keys)?,
                probes.clone(),
                settings,
            ),
            _ => api::probe_router(probes.clone(), settings),
        };
        let main_server = HttpServer {
            task_name: "http_server",
            listener: listeners.main,
            tls: listeners.main_tls.clone(),
            router,
        };
        let metrics_server = listeners.metrics.map(|listener| HttpServer {
            task_name: "metrics_server",
            listener,
            tls: None,
            router: api::probe_router(probes, settings),
        });
        Ok(Self {
            servers: [main_server].into_iter().chain(metrics_server).collect(),
            tls: listeners.main_tls,
            tls_reload_interval: settings.tls.reload_interval.get(),
        })
    }
}

fn api_state(
    context: &BuildContext<'_>,
    publishing: &Publishing,
    broker: Option<&Broker>,
    keys: Keys,
) -> Result<ApiState> {
    let delivery = Delivery::new(
        publishing.publisher.clone(),
        context.responses.clone(),
        context.topics.clone(),
        context.clock.clone(),
    );
    let deps = ApiDeps {
        connections: connections(context, broker),
        clients: clients(context, broker),
        broker_rejections: broker.cloned().map(|broker| {
            let rejections = move |client_id: &str| broker.recent_rejections(client_id);
            Arc::new(rejections) as ListBrokerRejections
        }),
        lookup_retries: LookupRetries {
            max_attempts: context.config.updaters.tenant_max_attempts,
            retry_interval: context.config.updaters.tenant_retry_interval.get(),
        },
        clock: context.clock.clone(),
        tracked_delivery: TrackedDelivery::new(
            delivery.clone(),
            context.repositories.messages.clone(),
            context.config.messages.lease.get(),
            context.stages.http.clone(),
        ),
        messages: context.repositories.messages.clone(),
        idempotency: context.repositories.idempotency.clone(),
        request_timeout: context.config.http.request_timeout.get(),
        delivery,
        ack_timeout: context.config.mqtt.publish_timeout.get(),
        keys,
        account_translator: account_translator(context.config)?,
        events: event_deps(context),
        tasks: context.stages.http.clone(),
    };
    Ok(ApiState::new(deps, &context.config.api))
}

/// Returns the events that the API streams. Returns `None` if events are disabled.
fn event_deps(context: &BuildContext<'_>) -> Option<EventDeps> {
    let config = context.config;
    config.events.enabled.then(|| EventDeps {
        events: context.repositories.events.clone(),
        max_streams: config.events.max_streams,
        kafka_topic: config
            .forwards_events()
            .then(|| config.events.kafka_topic.clone()),
    })
}

/// Returns the connections that the API shows. With the embedded broker, a client is connected only if
/// the broker has its connection.
fn connections(
    context: &BuildContext<'_>,
    broker: Option<&Broker>,
) -> Arc<dyn ConnectionRepository> {
    let connections = context.repositories.connections.clone();
    match broker {
        Some(broker) => Arc::new(LiveStatus {
            connections,
            broker: broker.clone(),
        }),
        None => connections,
    }
}

/// Like [`connections`], for the details of clients.
fn clients(context: &BuildContext<'_>, broker: Option<&Broker>) -> Arc<dyn ClientRepository> {
    let clients = context.repositories.clients.clone();
    match broker {
        Some(broker) => Arc::new(LiveClients {
            clients,
            broker: broker.clone(),
        }),
        None => clients,
    }
}
