//! Groups of tasks that are cancelled and awaited together.
//!
//! `runtime` creates one task group per shutdown stage (see `runtime::shutdown_order`). Functions
//! that spawn tasks take the group as an argument. There is no global shutdown flag.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A group of tasks that stop together. All clones refer to the same group.
#[derive(Debug, Clone, Default)]
pub struct TaskGroup {
    /// Cancelled to signal the tasks that they must finish.
    cancel_token: CancellationToken,
    /// Cancelled at the end of [`TaskGroup::stop`]. Tasks that are still running are then dropped.
    abort_token: CancellationToken,
    tasks: TaskTracker,
}

impl TaskGroup {
    /// Creates an empty group.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Spawns a task. [`TaskGroup::stop`] waits for the task.
    pub fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let abort_token = self.abort_token.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = task => {}
                () = abort_token.cancelled() => {}
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
        self.abort_token.cancel();
        all_finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stop_waits_for_tasks_to_finish() {
        let group = TaskGroup::new();
        let task_group = group.clone();
        group.spawn(async move { task_group.cancelled().await });
        assert!(group.stop(Duration::from_secs(5)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn stop_drops_tasks_that_exceed_the_timeout() {
        let group = TaskGroup::new();
        let resource = std::sync::Arc::new(());
        let held_by_task = resource.clone();
        group.spawn(async move {
            std::future::pending::<()>().await;
            drop(held_by_task);
        });
        assert!(!group.stop(Duration::from_secs(5)).await);
        group.tasks.wait().await;
        assert_eq!(std::sync::Arc::strong_count(&resource), 1);
    }
}
