//! The REST interface. One endpoint a file; what they share is beside them.

mod audit;
mod auth;
mod body_timeout;
mod connection_status;
mod docs;
mod error;
mod find_connection;
mod health;
mod json;
mod middleware;
mod openapi;
mod pagination;
mod rate_limits;
mod send_command;
mod send_message;
mod serve;
mod tls;
mod v1;
mod v2;
mod write_timeout;

use std::sync::Arc;

use axum::middleware::from_fn_with_state;

pub use axum::Router;

use crate::config::{self, Http, LookupMode};
use crate::delivery::Delivery;
use crate::domain::Clock;
use crate::store::Store;
use crate::telemetry::Health;
use crate::tenant::AccountTranslator;

use middleware::HttpLimits;
use openapi::DocumentedRouter;
use rate_limits::RateLimits;

pub use auth::Keys;
pub use openapi::document;
pub use serve::serve;
pub use tls::read_tls;

/// What the endpoints work with.
pub struct ApiState {
    /// For reading.
    store: Arc<dyn Store>,
    /// For sending.
    delivery: Delivery,
    /// Now.
    clock: Arc<dyn Clock>,
    /// Who may call.
    keys: Keys,
    /// Which account number and which organisation belong together.
    translator: Arc<dyn AccountTranslator>,
    /// How.
    settings: Settings,
    limits: RateLimits,
}

impl ApiState {
    /// For callers with these keys.
    pub fn new(
        store: Arc<dyn Store>,
        delivery: Delivery,
        clock: Arc<dyn Clock>,
        keys: Keys,
        translator: Arc<dyn AccountTranslator>,
        settings: &config::Api,
    ) -> Self {
        Self {
            store,
            delivery,
            clock,
            keys,
            translator,
            limits: RateLimits::new(&settings.rate_limit),
            settings: Settings {
                trust_identity_header: settings.trust_identity_header,
                lookup: settings.lookup_mode,
            },
        }
    }
}

/// How callers are told apart, and what they reach.
#[derive(Debug, Clone, Copy)]
struct Settings {
    /// Whether a gateway in front makes the identity header.
    trust_identity_header: bool,
    /// Whether Satellite servers of others are reached.
    lookup: LookupMode,
}

/// What probes and scrapers are shown.
#[derive(Clone)]
pub struct Probes {
    /// What readiness tells.
    pub health: Health,
    /// Renders the metrics page.
    pub render_metrics: fn() -> String,
}

type SharedState = Arc<ApiState>;

/// What every role serves: probes and metrics.
pub fn probes(probes: Probes, http: &Http) -> Router {
    finish(health::router().with_state(Arc::new(probes)), http)
}

/// The whole interface as one router.
pub fn router(parts: ApiState, shown: Probes, http: &Http) -> Router {
    let DocumentedRouter { router, document } = openapi::described(&http.base_path);
    let interface = router.with_state(Arc::new(parts));
    let docs = Router::new().nest(&http.base_path, docs::router(&document));
    let probes = health::router().with_state(Arc::new(shown));
    finish(interface.merge(docs).merge(probes), http)
}

fn finish(router: Router, http: &Http) -> Router {
    router
        .fallback(error::no_such_path)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(from_fn_with_state(
            HttpLimits::of(http),
            middleware::observe,
        ))
}
