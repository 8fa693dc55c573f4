//! The REST interface. One endpoint a file; what they share is beside them.

mod audit;
mod auth;
mod body;
mod commands;
mod docs;
mod error;
mod health;
mod json;
mod limits;
mod lookup;
mod observe;
mod openapi;
mod pagination;
mod patience;
mod presence;
mod sending;
mod serve;
mod tls;
mod v1;
mod v2;

use std::sync::Arc;

use axum::Router;
use axum::middleware;

use crate::config::{self, Http, LookupMode};
use crate::deliver::Delivery;
use crate::domain::Clock;
use crate::store::Store;
use crate::telemetry::Health;
use crate::tenant::Translator;

use limits::Limits;
use observe::Terms;
use openapi::Described;

pub use auth::Keys;
pub use openapi::document;
pub use serve::serve;
pub use tls::read_tls;

/// What the endpoints work with.
pub struct Parts {
    /// For reading.
    store: Arc<dyn Store>,
    /// For sending.
    delivery: Delivery,
    /// Now.
    clock: Arc<dyn Clock>,
    /// Who may call.
    keys: Keys,
    /// Which account number and which organisation belong together.
    translator: Arc<dyn Translator>,
    /// How.
    settings: Settings,
    limits: Limits,
}

impl Parts {
    /// For callers with these keys.
    pub fn new(
        store: Arc<dyn Store>,
        delivery: Delivery,
        clock: Arc<dyn Clock>,
        keys: Keys,
        translator: Arc<dyn Translator>,
        settings: &config::Api,
    ) -> Self {
        Self {
            store,
            delivery,
            clock,
            keys,
            translator,
            limits: Limits::new(&settings.limits),
            settings: Settings {
                trust_identity_header: settings.trust_identity_header,
                lookup: settings.lookup,
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

/// What [`fn@serve`] serves.
pub type Interface = Router;

type Shared = Arc<Parts>;

/// What every role serves: probes and metrics.
pub fn probes(probes: Probes, http: &Http) -> Interface {
    finish(health::router().with_state(Arc::new(probes)), http)
}

/// The whole interface as one router.
pub fn router(parts: Parts, shown: Probes, http: &Http) -> Interface {
    let Described { router, document } = openapi::described(&http.base_path);
    let interface = router.with_state(Arc::new(parts));
    let docs = Router::new().nest(&http.base_path, docs::router(&document));
    let probes = health::router().with_state(Arc::new(shown));
    finish(interface.merge(docs).merge(probes), http)
}

fn finish(router: Router, http: &Http) -> Router {
    router
        .fallback(error::no_such_path)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(middleware::from_fn_with_state(
            Terms::of(http),
            observe::observe,
        ))
}
