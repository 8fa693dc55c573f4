//! The timer loop of the periodic jobs.

use std::time::Duration;

use crate::shutdown::TaskGroup;

/// Runs `job` now, and again `interval` after each run has ended, until `tasks` is cancelled. Does
/// not interrupt a run: `job` must end soon after cancellation.
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
