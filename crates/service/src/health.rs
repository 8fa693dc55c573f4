//! Health checks of the components of this process, for the endpoint `/readiness`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use parking_lot::RwLock;

use crate::Supervisor;

/// The health of a component: `Ok`, or a description of the problem.
pub type HealthResult = Result<(), String>;

type HealthCheck = Arc<dyn Fn() -> BoxFuture<'static, HealthResult> + Send + Sync>;
type ComponentDescriber = Arc<dyn Fn() -> String + Send + Sync>;
type HealthyText = Arc<dyn Fn() -> &'static str + Send + Sync>;

/// Maximum duration of a health check. A component whose check takes longer is unhealthy.
const HEALTH_CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// The component that stands for the process itself. It is listed only if an essential task has
/// failed, or while the process shuts down.
const PROCESS: &str = "process";

/// The health checks of the process's components. All clones refer to the same set of components.
///
/// A component is a part of the process that has its own entry in the response of `/readiness`. The
/// code that adds the component chooses its name.
#[derive(Clone)]
pub struct Health {
    inner: Arc<HealthInner>,
}

struct HealthInner {
    checks: RwLock<BTreeMap<&'static str, HealthCheck>>,
    descriptions: RwLock<BTreeMap<&'static str, ComponentDescriber>>,
    healthy_texts: RwLock<BTreeMap<&'static str, HealthyText>>,
    supervisor: Supervisor,
    is_shutting_down: AtomicBool,
}

impl Health {
    /// Creates an empty set of components. A process without components is ready, until an
    /// essential task of `supervisor` fails.
    #[must_use]
    pub fn new(supervisor: &Supervisor) -> Self {
        Self {
            inner: Arc::new(HealthInner {
                checks: RwLock::default(),
                descriptions: RwLock::default(),
                healthy_texts: RwLock::default(),
                supervisor: supervisor.clone(),
                is_shutting_down: AtomicBool::new(false),
            }),
        }
    }

    /// Adds a component that must be healthy for the process to be ready. Each request to
    /// `/readiness` calls `check`.
    ///
    /// Each component may be added only once. If a component is added again, a debug build panics
    /// and a release build ignores the second check.
    pub fn add_check<F>(&self, component: &'static str, check: F)
    where
        F: Fn() -> BoxFuture<'static, HealthResult> + Send + Sync + 'static,
    {
        match self.inner.checks.write().entry(component) {
            Entry::Vacant(entry) => {
                entry.insert(Arc::new(check));
            }
            Entry::Occupied(_) => debug_assert!(false, "{component} was added twice"),
        }
    }

    /// Adds a component that does not affect readiness. Each request to `/readiness` calls
    /// `describe`, and the response contains the description.
    pub fn add_description(
        &self,
        component: &'static str,
        describe: impl Fn() -> String + Send + Sync + 'static,
    ) {
        match self.inner.descriptions.write().entry(component) {
            Entry::Vacant(entry) => {
                entry.insert(Arc::new(describe));
            }
            Entry::Occupied(_) => debug_assert!(false, "{component} was added twice"),
        }
    }

    /// Sets the text that the response of `/readiness` contains while a component is healthy, for
    /// example `standby`. Without this call, the text is `ok`.
    pub fn set_healthy_text(
        &self,
        component: &'static str,
        text: impl Fn() -> &'static str + Send + Sync + 'static,
    ) {
        let mut healthy_texts = self.inner.healthy_texts.write();
        healthy_texts.insert(component, Arc::new(text));
    }

    /// Returns the text for a component that is healthy.
    #[must_use]
    pub fn healthy_text(&self, component: &str) -> &'static str {
        let healthy_texts = self.inner.healthy_texts.read();
        healthy_texts.get(component).map_or("ok", |text| text())
    }

    /// Returns the current descriptions of the components that do not affect readiness.
    #[must_use]
    pub fn descriptions(&self) -> BTreeMap<&'static str, String> {
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

    /// Runs all health checks concurrently, and returns the result for each component. If an
    /// essential task has failed, or while the process shuts down, also returns an error for the
    /// process itself.
    pub async fn run_checks(&self) -> BTreeMap<&'static str, HealthResult> {
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
        if let Some(failure) = self.inner.supervisor.first_failure() {
            results.insert(PROCESS, Err(failure.to_string()));
        } else if self.inner.is_shutting_down.load(Ordering::Acquire) {
            results.insert(PROCESS, Err("shutting down".to_owned()));
        }
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TaskGroup;
    use futures::FutureExt as _;

    #[tokio::test(start_paused = true)]
    async fn run_checks_reports_each_component_and_reports_a_timeout_as_an_error() {
        let health = Health::new(&Supervisor::new());
        health.add_check("store", || async { Ok(()) }.boxed());
        health.add_check("recorder", || async { Err("disk full".to_owned()) }.boxed());
        health.add_check("broker", || std::future::pending().boxed());
        let results = health.run_checks().await;
        assert_eq!(results["store"], Ok(()));
        assert_eq!(results["recorder"], Err("disk full".to_owned()));
        assert!(results["broker"].is_err());
        assert!(!results.contains_key(PROCESS));
    }

    #[test]
    fn a_healthy_component_is_ok_unless_it_has_its_own_text() {
        let health = Health::new(&Supervisor::new());
        health.set_healthy_text("reader", || "standby");
        assert_eq!(health.healthy_text("reader"), "standby");
        assert_eq!(health.healthy_text("store"), "ok");
    }

    #[tokio::test]
    async fn the_process_is_not_ready_after_begin_shutdown() {
        let health = Health::new(&Supervisor::new());
        health.begin_shutdown();
        assert!(health.run_checks().await[PROCESS].is_err());
    }

    #[tokio::test]
    async fn the_process_reports_a_failed_task_even_while_it_shuts_down() {
        let supervisor = Supervisor::new();
        let health = Health::new(&supervisor);
        TaskGroup::supervised_by(&supervisor).spawn_essential("writer", async {});
        supervisor.wait_for_failure().await;
        let failure = Err("task writer ended before shutdown".to_owned());
        assert_eq!(health.run_checks().await[PROCESS], failure);
        health.begin_shutdown();
        assert_eq!(health.run_checks().await[PROCESS], failure);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "store was added twice")]
    fn adding_a_component_twice_panics() {
        let health = Health::new(&Supervisor::new());
        health.add_check("store", || async { Ok(()) }.boxed());
        health.add_check("store", || async { Ok(()) }.boxed());
    }
}
