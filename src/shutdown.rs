//! Groups of tasks that are cancelled and awaited together.
//!
//! `runtime` creates one group per shutdown stage (see `runtime::shutdown_order`) and passes it as
//! an argument to everything that spawns tasks. There is no global shutdown flag.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Tasks that stop together. All clones refer to the same group.
#[derive(Debug, Clone, Default)]
pub struct TaskGroup {
    cancel: CancellationToken,
    /// Drops tasks that are still running when [`TaskGroup::stop`] times out.
    abort: CancellationToken,
    tasks: TaskTracker,
}

impl TaskGroup {
    /// Creates an empty group.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Spawns a task. [`TaskGroup::stop`] waits for it.
    pub fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let abort = self.abort.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = task => {}
                () = abort.cancelled() => {}
            }
        });
    }

    /// Signals all tasks to finish. Returns without waiting for them.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Returns whether the group was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Waits until the group is cancelled.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// The cancellation token, for APIs that need an owned token.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Cancels the group and waits for its tasks. Tasks that are still running after `timeout` are
    /// dropped; the result is then `false`.
    pub async fn stop(&self, timeout: Duration) -> bool {
        self.cancel();
        self.tasks.close();
        let finished = tokio::time::timeout(timeout, self.tasks.wait())
            .await
            .is_ok();
        self.abort.cancel();
        finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stop_waits_for_tasks_to_finish() {
        let group = TaskGroup::new();
        let cancelled = group.clone();
        group.spawn(async move { cancelled.cancelled().await });
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
