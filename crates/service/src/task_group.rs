//! Groups of tasks that are cancelled and awaited together.
//!
//! `runtime` creates one task group per shutdown stage (see `runtime::shutdown_order`). Functions
//! that spawn tasks take the group as an argument. There is no global shutdown flag.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use futures::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::metrics;
use crate::supervisor::{FailureCause, Supervisor, TaskName, panic_message};

/// A group of tasks that stop together. All clones refer to the same group.
#[derive(Debug, Clone, Default)]
pub struct TaskGroup {
    /// Records the failures of the essential tasks of this group.
    supervisor: Supervisor,
    /// Cancelled to signal the tasks that they must finish.
    cancel_token: CancellationToken,
    /// Cancelled at the end of [`TaskGroup::stop`]. Tasks that are still running are then dropped.
    drop_token: CancellationToken,
    tasks: TaskTracker,
}

/// Whether an essential task may return before its group is cancelled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EarlyEnd {
    IsFailure,
    IsAllowed,
}

/// The output of an essential task.
trait TaskOutput {
    /// Returns the error with which the task failed.
    fn into_result(self) -> Result<(), String>;
}

impl TaskOutput for () {
    fn into_result(self) -> Result<(), String> {
        Ok(())
    }
}

impl TaskOutput for Result<(), String> {
    fn into_result(self) -> Self {
        self
    }
}

impl TaskGroup {
    /// Creates an empty group with its own supervisor. This is for tests, and for programs that
    /// have no essential tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty group whose essential tasks are supervised by `supervisor`.
    #[must_use]
    pub fn supervised_by(supervisor: &Supervisor) -> Self {
        Self {
            supervisor: supervisor.clone(),
            ..Self::default()
        }
    }

    /// Spawns an essential task, which must run until the group is cancelled. If the task returns
    /// earlier or panics, the supervisor records a failure.
    pub fn spawn_essential<F>(&self, name: impl Into<TaskName>, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_supervised(name.into(), EarlyEnd::IsFailure, task);
    }

    /// Spawns an essential task that can fail. If the task returns an error, the supervisor records
    /// a failure whose cause contains the error. `Ok` is a failure only before the group is
    /// cancelled.
    pub fn spawn_fallible<F>(&self, name: impl Into<TaskName>, task: F)
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        self.spawn_supervised(name.into(), EarlyEnd::IsFailure, task);
    }

    /// Spawns an essential task that may return before the group is cancelled. If the task panics,
    /// the supervisor records a failure.
    pub fn spawn_one_shot<F>(&self, name: impl Into<TaskName>, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_supervised(name.into(), EarlyEnd::IsAllowed, task);
    }

    /// Spawns a task that processes one item, for example a connection or a request. A panic is
    /// logged and counted, and ends only this task.
    ///
    /// All tasks of the same kind have the same `name`.
    pub fn spawn_item<F>(&self, name: &'static str, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let drop_token = self.drop_token.clone();
        // Boxed, because each future that contains the task would need the memory of the task once
        // more. There can be a million connections.
        let task = Box::pin(task);
        self.tasks.spawn(async move {
            tokio::select! {
                () = log_panic(name, task) => {}
                () = drop_token.cancelled() => {}
            }
        });
    }

    fn spawn_supervised<F>(&self, name: TaskName, early_end: EarlyEnd, task: F)
    where
        F: Future<Output: TaskOutput> + Send + 'static,
    {
        let registration = self.supervisor.register(name);
        let (cancel_token, drop_token) = (self.cancel_token.clone(), self.drop_token.clone());
        self.tasks.spawn(async move {
            // The end of a task can end other tasks, for example because it closes their channels.
            // Therefore the failure is recorded before `task` is dropped at the end of this block.
            let mut task = pin!(AssertUnwindSafe(task).catch_unwind());
            let failure_cause = tokio::select! {
                result = &mut task => match result.map(TaskOutput::into_result) {
                    Err(panic) => Some(FailureCause::Panicked(panic_message(&*panic))),
                    Ok(Err(error)) => Some(FailureCause::Failed(error)),
                    Ok(Ok(())) if early_end == EarlyEnd::IsAllowed => None,
                    Ok(Ok(())) if cancel_token.is_cancelled() => None,
                    Ok(Ok(())) => Some(FailureCause::Ended),
                },
                () = registration.aborted() => Some(FailureCause::Aborted),
                () = drop_token.cancelled() => None,
            };
            if let Some(cause) = failure_cause {
                registration.record_failure(cause);
            }
        });
    }

    /// Signals all tasks to finish. Returns without waiting for the tasks.
    pub fn cancel(&self) {
        self.cancel_token.cancel();
    }

    /// Returns whether the group was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancel_token.is_cancelled()
    }

    /// Waits until the group is cancelled.
    pub async fn cancelled(&self) {
        self.cancel_token.cancelled().await;
    }

    /// Returns the cancellation token, for APIs that need an owned token.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.cancel_token.clone()
    }

    /// Cancels the group and waits until all tasks have finished. If some tasks are still running
    /// after `timeout`, drops these tasks and returns `false`.
    pub async fn stop(&self, timeout: Duration) -> bool {
        self.cancel();
        self.tasks.close();
        let all_finished = tokio::time::timeout(timeout, self.tasks.wait())
            .await
            .is_ok();
        self.drop_token.cancel();
        all_finished
    }
}

/// Spawns a task that processes one item and that no shutdown stage waits for. A panic is logged
/// and counted, as for [`TaskGroup::spawn_item`].
pub fn spawn_detached_item<F>(name: &'static str, task: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(log_panic(name, task));
}

/// Runs a task. If the task panics, logs and counts the panic.
async fn log_panic(name: &'static str, task: impl Future<Output = ()>) {
    if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
        let message = panic_message(&*panic);
        tracing::error!(task = name, error = message, "task panicked");
        metrics::count_task_failure(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stop_waits_for_tasks_to_finish() {
        let group = TaskGroup::new();
        let task_group = group.clone();
        group.spawn_item("item", async move { task_group.cancelled().await });
        assert!(group.stop(Duration::from_secs(5)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn stop_drops_tasks_that_exceed_the_timeout() {
        let group = TaskGroup::new();
        let resource = std::sync::Arc::new(());
        let hold_forever = |resource: std::sync::Arc<()>| async move {
            std::future::pending::<()>().await;
            drop(resource);
        };
        group.spawn_item("item", hold_forever(resource.clone()));
        group.spawn_essential("essential", hold_forever(resource.clone()));
        assert!(!group.stop(Duration::from_secs(5)).await);
        group.tasks.wait().await;
        assert_eq!(std::sync::Arc::strong_count(&resource), 1);
        assert_eq!(group.supervisor.first_failure(), None);
    }
}
