//! Runs a connector until shutdown.

use std::process::ExitCode;

use super::App;
use service::TaskFailure;

/// How the run of a connector ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOutcome {
    /// The first failure of an essential task. `None` if no essential task failed.
    pub task_failure: Option<TaskFailure>,
    /// Whether all shutdown stages finished in time.
    pub is_clean_shutdown: bool,
}

impl RunOutcome {
    /// Returns whether no essential task failed and the shutdown was clean.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.task_failure.is_none() && self.is_clean_shutdown
    }

    /// Returns the exit code of the process.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        if self.is_success() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

/// Runs the connector until `shutdown_signal` completes or an essential task fails. Then shuts the
/// connector down.
pub async fn run_until(app: App, shutdown_signal: impl Future<Output = ()>) -> RunOutcome {
    let supervisor = app.supervisor.clone();
    let failure_before_shutdown = tokio::select! {
        failure = supervisor.wait_for_failure() => Some(failure),
        () = shutdown_signal => None,
    };
    if let Some(failure) = &failure_before_shutdown {
        let (task, error) = (&failure.task, &failure.cause);
        tracing::error!(%task, %error, "essential task failed; shutting down");
    }
    let is_clean_shutdown = app.stop().await;
    let task_failure = supervisor.first_failure();
    if failure_before_shutdown.is_none()
        && let Some(failure) = &task_failure
    {
        let (task, error) = (&failure.task, &failure.cause);
        tracing::error!(%task, %error, "essential task failed during shutdown");
    }
    RunOutcome {
        task_failure,
        is_clean_shutdown,
    }
}
