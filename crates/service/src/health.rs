//! Health checks of the components of this process, for the endpoint `/readiness`.

mod cause;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use parking_lot::RwLock;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::Supervisor;

pub use cause::HealthCause;

/// The health of a component: `Ok`, or the error. The error is logged. The response of `/readiness`
/// contains only its [`HealthCause`].
pub type HealthResult = Result<(), String>;

/// The health of a component in the response of `/readiness`: `Ok`, or the cause of the problem.
pub type PublicHealthResult = Result<(), Cow<'static, str>>;

type HealthCheck = Arc<dyn Fn() -> BoxFuture<'static, HealthResult> + Send + Sync>;
type ComponentDescriber = Arc<dyn Fn() -> String + Send + Sync>;
type HealthyText = Arc<dyn Fn() -> &'static str + Send + Sync>;

/// Maximum duration of a health check. A component whose check takes longer is unhealthy.
const HEALTH_CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the results of the health checks are reused. `/readiness` needs no authentication, so its
/// callers must not cause a query of the database or of Kafka with each request.
const RESULT_LIFETIME: Duration = Duration::from_secs(1);

/// Time after which an unchanged problem of a component is logged again.
const LOG_INTERVAL: Duration = Duration::from_mins(1);
/// Minimum time between two log lines about different errors with the same cause. An error can contain
/// a number that changes with each check.
const CHANGED_ERROR_LOG_INTERVAL: Duration = Duration::from_secs(10);

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
    /// The latest results of the health checks. Locked while the checks run, so the checks run only
    /// once for concurrent callers.
    check_state: Mutex<CheckState>,
}

#[derive(Default)]
struct CheckState {
    latest_results: Option<LatestResults>,
    /// The latest log line about each unhealthy component.
    logged_problems: BTreeMap<&'static str, LoggedProblem>,
}

struct LoggedProblem {
    cause: HealthCause,
    error: String,
    logged_at: Instant,
}

impl LoggedProblem {
    /// Returns whether a new log line would contain nothing new, or would follow too soon.
    fn covers(&self, cause: HealthCause, error: &str) -> bool {
        let interval = if self.error == error {
            LOG_INTERVAL
        } else {
            CHANGED_ERROR_LOG_INTERVAL
        };
        self.cause == cause && self.logged_at.elapsed() < interval
    }
}

struct LatestResults {
    completed_at: Instant,
    causes: BTreeMap<&'static str, Result<(), HealthCause>>,
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
                check_state: Mutex::default(),
            }),
        }
    }

    /// Adds a component that must be healthy for the process to be ready. Requests to `/readiness`
    /// call `check` at most once per second.
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

    /// Returns the result of the health check of each component. If an essential task has failed, or
    /// while the process shuts down, also returns an error for the process itself.
    ///
    /// Results of components are up to one second old. Concurrent calls run each check only once.
    pub async fn run_checks(&self) -> BTreeMap<&'static str, PublicHealthResult> {
        let causes = self.component_causes().await;
        let mut results: BTreeMap<_, PublicHealthResult> = causes
            .into_iter()
            .map(|(component, result)| (component, result.map_err(|cause| cause.as_str().into())))
            .collect();
        if let Some(failure) = self.inner.supervisor.first_failure() {
            results.insert(PROCESS, Err(failure.public_text().into()));
        } else if self.inner.is_shutting_down.load(Ordering::Acquire) {
            results.insert(PROCESS, Err(HealthCause::ShuttingDown.as_str().into()));
        }
        results
    }

    async fn component_causes(&self) -> BTreeMap<&'static str, Result<(), HealthCause>> {
        let mut state = self.inner.check_state.lock().await;
        if let Some(latest) = &state.latest_results
            && latest.completed_at.elapsed() < RESULT_LIFETIME
        {
            return latest.causes.clone();
        }
        let results = self.run_component_checks().await;
        let causes: BTreeMap<_, _> = results
            .into_iter()
            .map(|(component, result)| (component, state.log_and_classify(component, result)))
            .collect();
        state.latest_results = Some(LatestResults {
            completed_at: Instant::now(),
            causes: causes.clone(),
        });
        causes
    }

    /// Runs the health checks of all components concurrently.
    async fn run_component_checks(&self) -> BTreeMap<&'static str, HealthResult> {
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
        join_all(results).await.into_iter().collect()
    }
}

impl CheckState {
    /// Returns the cause of the error. Logs the error if it is new or was not logged for a minute, and
    /// logs the end of the problem.
    fn log_and_classify(
        &mut self,
        component: &'static str,
        result: HealthResult,
    ) -> Result<(), HealthCause> {
        let Err(error) = result else {
            if self.logged_problems.remove(component).is_some() {
                tracing::info!(component, "component is healthy again");
            }
            return Ok(());
        };
        let cause = HealthCause::of_error(&error);
        let latest = self.logged_problems.get(component);
        if !latest.is_some_and(|logged| logged.covers(cause, &error)) {
            tracing::warn!(
                component,
                cause = cause.as_str(),
                error,
                "component is not healthy"
            );
            let logged = LoggedProblem {
                cause,
                error,
                logged_at: Instant::now(),
            };
            self.logged_problems.insert(component, logged);
        }
        Err(cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TaskGroup;
    use futures::FutureExt as _;
    use std::sync::atomic::AtomicUsize;

    #[tokio::test(start_paused = true)]
    async fn run_checks_reports_each_component_and_reports_a_timeout_as_an_error() {
        let health = Health::new(&Supervisor::new());
        health.add_check("store", || async { Ok(()) }.boxed());
        let error = "user secret: the disk is full";
        health.add_check("recorder", || async { Err(error.to_owned()) }.boxed());
        health.add_check("broker", || std::future::pending().boxed());
        let results = health.run_checks().await;
        assert_eq!(results["store"], Ok(()));
        assert_eq!(results["recorder"], Err("disk full".into()));
        assert_eq!(results["broker"], Err("timeout".into()));
        assert!(!results.contains_key(PROCESS));
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_and_repeated_calls_run_each_check_at_most_once_per_second() {
        let health = Health::new(&Supervisor::new());
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = calls.clone();
        health.add_check("store", move || {
            let call = counter.fetch_add(1, Ordering::Relaxed);
            async move {
                tokio::time::sleep(Duration::from_millis(500)).await;
                Err(["timeout", "connection refused"][call].to_owned())
            }
            .boxed()
        });
        let results = join_all((0..200).map(|_| health.run_checks())).await;
        let expected = Err("timeout".into());
        assert!(results.iter().all(|result| result["store"] == expected));
        tokio::time::sleep(Duration::from_millis(999)).await;
        assert_eq!(health.run_checks().await["store"], expected);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(
            health.run_checks().await["store"],
            Err("connection refused".into())
        );
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_caller_does_not_prevent_the_checks_of_others() {
        let health = Health::new(&Supervisor::new());
        health.add_check("store", || {
            async {
                tokio::time::sleep(Duration::from_millis(500)).await;
                Ok(())
            }
            .boxed()
        });
        let cancelled_caller =
            tokio::time::timeout(Duration::from_millis(100), health.run_checks());
        let (cancelled, results) = tokio::join!(cancelled_caller, health.run_checks());
        assert!(cancelled.is_err());
        assert_eq!(results["store"], Ok(()));
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
        assert!(!health.run_checks().await.contains_key(PROCESS));
        health.begin_shutdown();
        assert!(health.run_checks().await[PROCESS].is_err());
    }

    #[tokio::test]
    async fn the_process_reports_a_failed_task_even_while_it_shuts_down() {
        let supervisor = Supervisor::new();
        let health = Health::new(&supervisor);
        TaskGroup::supervised_by(&supervisor).spawn_essential("writer", async {});
        supervisor.wait_for_failure().await;
        let failure = Err("task writer ended before shutdown".into());
        assert_eq!(health.run_checks().await[PROCESS], failure);
        health.begin_shutdown();
        assert_eq!(health.run_checks().await[PROCESS], failure);
    }

    #[tokio::test]
    async fn the_process_reports_a_failed_task_without_its_error() {
        let supervisor = Supervisor::new();
        let health = Health::new(&supervisor);
        let task = async { Err("/secret/path was deleted".to_owned()) };
        TaskGroup::supervised_by(&supervisor).spawn_fallible("file_check", task);
        supervisor.wait_for_failure().await;
        let results = health.run_checks().await;
        assert_eq!(results[PROCESS], Err("task file_check failed".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_is_logged_if_it_is_new_and_then_once_per_minute() {
        static LOG: std::sync::Mutex<Vec<u8>> = std::sync::Mutex::new(Vec::new());
        use tracing_subscriber::fmt::MakeWriter as _;
        let subscriber = tracing_subscriber::fmt().with_writer(|| LOG.make_writer());
        let _guard = tracing::subscriber::set_default(subscriber.finish());
        let mut state = CheckState::default();
        let mut check = |error: &str| {
            let result = state.log_and_classify("store", Err(error.to_owned()));
            assert!(result.is_err());
            let log = String::from_utf8(std::mem::take(&mut *LOG.lock().unwrap())).unwrap();
            log.contains("component is not healthy") && log.contains(error)
        };
        assert!(check("timeout of user a"));
        assert!(!check("timeout of user a"));
        assert!(!check("timeout of user b"), "too soon");
        assert!(check("connection refused by c"), "another cause");
        tokio::time::advance(CHANGED_ERROR_LOG_INTERVAL).await;
        assert!(!check("connection refused by c"));
        assert!(check("connection refused by d"));
        tokio::time::advance(LOG_INTERVAL).await;
        assert!(check("connection refused by d"));
        assert_eq!(state.log_and_classify("store", Ok(())), Ok(()));
        let log = String::from_utf8(std::mem::take(&mut *LOG.lock().unwrap())).unwrap();
        assert!(log.contains("component is healthy again"), "{log}");
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
