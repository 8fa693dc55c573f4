//! Health checks of the components of this process, for the endpoint `/readiness`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use parking_lot::RwLock;

/// The health of a component: `Ok`, or a description of the problem.
pub type HealthResult = Result<(), String>;

type HealthCheck = Arc<dyn Fn() -> BoxFuture<'static, HealthResult> + Send + Sync>;
type ComponentDescriber = Arc<dyn Fn() -> String + Send + Sync>;

/// Maximum duration of a health check. A component whose check takes longer is unhealthy.
const HEALTH_CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// A part of the process that has its own entry in the response of `/readiness`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// The database.
    Store,
    /// The writers that apply messages to the database.
    Recorder,
    /// The embedded MQTT broker.
    EmbeddedBroker,
    /// The connection on which `ingest` receives messages from an external MQTT broker.
    MqttIngest,
    /// The connection on which `api` publishes messages to an external MQTT broker.
    MqttApi,
    /// The Kafka producer of `ingest`.
    KafkaProducer,
    /// The consumer of the ingress topic.
    KafkaIngress,
    /// The consumer of the answers topic.
    KafkaAnswers,
    /// The tenant lookup service.
    TenantLookup,
    /// The process itself. Listed only while the process shuts down.
    Process,
}

impl Component {
    /// Returns the component's name in the response of `/readiness`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Recorder => "recorder",
            Self::EmbeddedBroker => "embedded_broker",
            Self::MqttIngest => "mqtt_ingest",
            Self::MqttApi => "mqtt_api",
            Self::KafkaProducer => "kafka_producer",
            Self::KafkaIngress => "kafka_ingress",
            Self::KafkaAnswers => "kafka_answers",
            Self::TenantLookup => "tenant_lookup",
            Self::Process => "process",
        }
    }
}

/// The health checks of the process's components. All clones refer to the same set of components.
#[derive(Clone, Default)]
pub struct Health {
    inner: Arc<HealthInner>,
}

#[derive(Default)]
struct HealthInner {
    checks: RwLock<BTreeMap<Component, HealthCheck>>,
    descriptions: RwLock<BTreeMap<Component, ComponentDescriber>>,
    is_shutting_down: AtomicBool,
}

impl Health {
    /// Creates an empty set of components. A process without components is ready.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a component that must be healthy for the process to be ready. Each request to
    /// `/readiness` calls `check`.
    ///
    /// Each component may be added only once. If a component is added again, a debug build panics
    /// and a release build ignores the second check.
    pub fn add_check<F>(&self, component: Component, check: F)
    where
        F: Fn() -> BoxFuture<'static, HealthResult> + Send + Sync + 'static,
    {
        match self.inner.checks.write().entry(component) {
            Entry::Vacant(entry) => {
                entry.insert(Arc::new(check));
            }
            Entry::Occupied(_) => debug_assert!(false, "{component:?} was added twice"),
        }
    }

    /// Adds a component that does not affect readiness. Each request to `/readiness` calls
    /// `describe`, and the response contains the description.
    pub fn add_description(
        &self,
        component: Component,
        describe: impl Fn() -> String + Send + Sync + 'static,
    ) {
        match self.inner.descriptions.write().entry(component) {
            Entry::Vacant(entry) => {
                entry.insert(Arc::new(describe));
            }
            Entry::Occupied(_) => debug_assert!(false, "{component:?} was added twice"),
        }
    }

    /// Returns the current descriptions of the components that do not affect readiness.
    #[must_use]
    pub fn descriptions(&self) -> BTreeMap<Component, String> {
        let descriptions = self.inner.descriptions.read();
        descriptions
            .iter()
            .map(|(component, describe)| (*component, describe()))
            .collect()
    }

    /// Marks the process as shutting down. From then on, the process is not ready.
    pub fn begin_shutdown(&self) {
        self.inner.is_shutting_down.store(true, Ordering::Release);
    }

    /// Runs all health checks concurrently, and returns the result for each component. While the
    /// process shuts down, also returns an error for the process itself.
    pub async fn run_checks(&self) -> BTreeMap<Component, HealthResult> {
        let checks: Vec<_> = {
            let checks = self.inner.checks.read();
            checks
                .iter()
                .map(|(component, check)| (*component, check.clone()))
                .collect()
        };
        let results = checks.into_iter().map(|(component, check)| async move {
            let result = tokio::time::timeout(HEALTH_CHECK_TIMEOUT, check())
                .await
                .unwrap_or_else(|_| {
                    Err(format!(
                        "health check timed out after {HEALTH_CHECK_TIMEOUT:?}"
                    ))
                });
            (component, result)
        });
        let mut results: BTreeMap<_, _> = join_all(results).await.into_iter().collect();
        if self.inner.is_shutting_down.load(Ordering::Acquire) {
            results.insert(Component::Process, Err("shutting down".to_owned()));
        }
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test(start_paused = true)]
    async fn run_checks_reports_each_component_and_reports_a_timeout_as_an_error() {
        let health = Health::new();
        health.add_check(Component::Store, || async { Ok(()) }.boxed());
        health.add_check(Component::Recorder, || {
            async { Err("disk full".to_owned()) }.boxed()
        });
        health.add_check(Component::MqttIngest, || std::future::pending().boxed());
        let results = health.run_checks().await;
        assert_eq!(results[&Component::Store], Ok(()));
        assert_eq!(results[&Component::Recorder], Err("disk full".to_owned()));
        assert!(results[&Component::MqttIngest].is_err());
        assert!(!results.contains_key(&Component::Process));
    }

    #[tokio::test]
    async fn the_process_is_not_ready_after_begin_shutdown() {
        let health = Health::new();
        health.begin_shutdown();
        assert!(health.run_checks().await[&Component::Process].is_err());
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "Store was added twice")]
    fn adding_a_component_twice_panics() {
        let health = Health::new();
        health.add_check(Component::Store, || async { Ok(()) }.boxed());
        health.add_check(Component::Store, || async { Ok(()) }.boxed());
    }
}
