//! The stopper: made once in `runtime`, passed to everything that runs.
//!
//! Stopping goes in stages (see `runtime::stop`), so a part is told to stop through a token of its
//! own, a child of the stopper that only `runtime` cancels.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Stops one part: a token that says so and a tracker that knows when its tasks have ended.
#[derive(Debug, Clone, Default)]
pub struct TaskGroup {
    token: CancellationToken,
    /// Whoever did not stop in time is dropped where it stands.
    abandoned: CancellationToken,
    tasks: TaskTracker,
}

impl TaskGroup {
    /// One that nobody has asked to stop.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs a task that [`TaskGroup::stop`] waits for.
    pub fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let abandoned = self.abandoned.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = task => {}
                () = abandoned.cancelled() => {}
            }
        });
    }

    /// Asks the part to stop, and does not wait.
    pub fn ask(&self) {
        self.token.cancel();
    }

    /// Whether it was asked to stop.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits until it is asked to stop.
    pub async fn asked(&self) {
        self.token.cancelled().await;
    }

    /// The token, for what wants to select over it.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Asks the part to stop and waits for its tasks, up to a bound; then they are dropped. False
    /// if it came to that.
    pub async fn stop(&self, within: Duration) -> bool {
        self.ask();
        self.tasks.close();
        let waiting = tokio::time::timeout(within, self.tasks.wait());
        let in_time = waiting.await.is_ok();
        self.abandoned.cancel();
        in_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stop_waits_for_its_tasks() {
        let stopper = TaskGroup::new();
        let inner = stopper.clone();
        stopper.spawn(async move { inner.asked().await });
        assert!(stopper.stop(Duration::from_secs(5)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn stop_gives_up_at_its_bound() {
        let stopper = TaskGroup::new();
        let held = std::sync::Arc::new(());
        let inside = held.clone();
        stopper.spawn(async move {
            std::future::pending::<()>().await;
            drop(inside);
        });
        assert!(!stopper.stop(Duration::from_secs(5)).await);
        // And what did not stop is dropped.
        stopper.tasks.wait().await;
        assert_eq!(std::sync::Arc::strong_count(&held), 1);
    }
}
