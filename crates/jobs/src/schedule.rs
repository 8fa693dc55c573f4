//! The timer loop of the periodic jobs.

use std::time::Duration;

use service::TaskGroup;

/// Runs `job` immediately, and again `interval` after the end of each run, until `tasks` is
/// cancelled. Cancellation does not interrupt a run, so `job` must end soon after cancellation.
pub(super) async fn run_periodically<F>(interval: Duration, tasks: &TaskGroup, job: impl Fn() -> F)
where
    F: Future<Output = ()>,
{
    loop {
        job().await;
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = tasks.cancelled() => return,
        }
    }
}
