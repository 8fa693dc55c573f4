//! The REST API and its HTTP server.
//!
//! `v1` and `v2` contain the endpoints, one file per endpoint. The other modules contain code that
//! the endpoints share: authentication, errors, pagination, middleware, rate limits and the OpenAPI
//! document. SQL belongs to `store`, and message delivery belongs to `delivery`.

mod audit;
mod auth;
mod client_address;
mod connection_status;
mod docs;
mod error;
mod find_connection;
mod health;
mod idempotency;
mod json;
mod large_responses;
pub mod metrics;
mod middleware;
mod openapi;
mod pagination;
mod rate_limits;
mod request_body;
mod send_command;
mod send_message;
mod serve;
mod settings;
mod tls;
mod v1;
mod v2;

use std::sync::Arc;
use std::time::Duration;

use axum::middleware::from_fn_with_state;

pub use axum::Router;

use delivery::{Delivery, TrackedDelivery};
use domain::{BrokerRejection, Clock};
use service::{Health, TaskGroup};
use store::{
    ClientRepository, ConnectionRepository, EventRepository, IdempotencyRepository,
    MessageRepository,
};
use tenant::AccountTranslator;

use auth::AuthFailures;
use large_responses::LargeResponses;
use middleware::MiddlewareConfig;
use openapi::DocumentedRouter;
use rate_limits::RateLimits;
use v2::events::EventHub;
use v2::events::asyncapi::asyncapi_json;

pub use auth::Keys;
pub use client_address::IpRange;
pub use openapi::openapi_json;
pub use serve::serve;
pub use settings::{
    ApiRateLimit, ApiSettings, AuthFailureLimit, CallerKey, DetailedKey, HttpSettings,
    HttpTlsSettings, LookupMode, Scope,
};
pub use tls::read_tls;

/// Dependencies of the endpoints.
pub struct ApiDeps {
    /// Connections of the clients.
    pub connections: Arc<dyn ConnectionRepository>,
    /// What is stored about each client, connected or not.
    pub clients: Arc<dyn ClientRepository>,
    /// Returns the latest rejections of a client id by the embedded broker. `None` with an external
    /// broker.
    pub broker_rejections: Option<ListBrokerRejections>,
    /// When tenantless clients are looked up again.
    pub lookup_retries: LookupRetries,
    /// Source of the current time.
    pub clock: Arc<dyn Clock>,
    /// Sends messages to clients.
    pub delivery: Delivery,
    /// Sends tracked messages.
    pub tracked_delivery: TrackedDelivery,
    /// Tracked messages.
    pub messages: Arc<dyn MessageRepository>,
    /// Idempotency keys.
    pub idempotency: Arc<dyn IdempotencyRepository>,
    /// Maximum duration of a request.
    pub request_timeout: Duration,
    /// How long an endpoint waits for the broker's acknowledgement. An endpoint may use another
    /// time.
    pub ack_timeout: Duration,
    /// Keys of the callers.
    pub keys: Keys,
    /// Translates v1 account numbers to organizations.
    pub account_translator: Arc<dyn AccountTranslator>,
    /// Events of organizations. `None` if events are disabled.
    pub events: Option<EventDeps>,
    /// The group of the tasks that serve HTTP. A request spawns a task here if the task must
    /// continue when the caller closes the connection.
    pub tasks: TaskGroup,
}

/// Returns the latest rejections of a client id, which may be invalid.
pub type ListBrokerRejections = Arc<dyn Fn(&str) -> Vec<BrokerRejection> + Send + Sync>;

/// When the jobs look up a tenantless client again.
#[derive(Debug, Clone, Copy)]
pub struct LookupRetries {
    /// Number of failed lookups after which a client is not looked up again.
    pub max_attempts: u32,
    /// Minimum time between two lookups of a client.
    pub retry_interval: Duration,
}

/// Dependencies and settings of the event streams.
pub struct EventDeps {
    /// The events.
    pub events: Arc<dyn EventRepository>,
    /// Maximum number of open streams for each key and organization.
    pub max_streams: usize,
    /// Kafka topic to which events are forwarded. `None` if events are not forwarded.
    pub kafka_topic: Option<String>,
}

/// Dependencies and settings of the endpoints.
pub struct ApiState {
    deps: ApiDeps,
    rate_limits: RateLimits,
    auth_failures: AuthFailures,
    large_responses: LargeResponses,
    /// The event streams. `None` if events are disabled.
    event_hub: Option<EventHub>,
    /// Whether to accept the header `x-rh-identity`. Accepting the header is safe only behind a
    /// gateway that overwrites the header.
    trust_identity_header: bool,
    lookup_mode: LookupMode,
    /// Whether all messages are tracked.
    tracks_all: bool,
}

impl ApiState {
    /// Creates the state from its dependencies and the `[api]` configuration.
    pub fn new(deps: ApiDeps, config: &ApiSettings) -> Self {
        let large_responses = LargeResponses::new(config, deps.tasks.clone());
        let event_hub = deps
            .events
            .as_ref()
            .map(|it| EventHub::new(it.events.clone(), it.max_streams, deps.tasks.clone()));
        Self {
            deps,
            large_responses,
            event_hub,
            rate_limits: RateLimits::new(&config.rate_limit),
            auth_failures: AuthFailures::new(config.auth_failure_limit),
            trust_identity_header: config.trust_identity_header,
            lookup_mode: config.lookup_mode,
            tracks_all: config.track_all,
        }
    }
}

/// Endpoints use the dependencies like fields of the state.
impl std::ops::Deref for ApiState {
    type Target = ApiDeps;

    fn deref(&self) -> &ApiDeps {
        &self.deps
    }
}

/// Dependencies of `/liveness`, `/readiness` and `/metrics`.
#[derive(Clone)]
pub struct ProbeState {
    /// Health checks that `/readiness` runs.
    pub health: Health,
    /// Renders the `/metrics` page.
    pub render_metrics: fn() -> String,
}

type SharedState = Arc<ApiState>;

/// Builds the router of a process that does not serve the API: only probes and metrics.
pub fn probe_router(probes: ProbeState, http: &HttpSettings) -> Router {
    with_middleware(health::router().with_state(Arc::new(probes)), http)
}

/// Builds the router of a process that serves the API: API, documentation, probes and metrics.
pub fn router(state: ApiState, probes: ProbeState, http: &HttpSettings) -> Router {
    let DocumentedRouter { router, document } = openapi::documented_router(&http.base_path);
    let kafka_topic = state
        .deps
        .events
        .as_ref()
        .and_then(|it| it.kafka_topic.as_deref());
    let asyncapi = asyncapi_json(&http.base_path, kafka_topic);
    let api = router.with_state(Arc::new(state));
    let docs = Router::new().nest(&http.base_path, docs::router(&document, asyncapi));
    let probes = health::router().with_state(Arc::new(probes));
    with_middleware(api.merge(docs).merge(probes), http)
}

fn with_middleware(router: Router, http: &HttpSettings) -> Router {
    router
        .fallback(error::path_not_found)
        .method_not_allowed_fallback(error::method_not_allowed)
        .layer(from_fn_with_state(
            MiddlewareConfig::from_config(http),
            middleware::handle_request,
        ))
}
