//! Moves new entries of the search index from its pending list to the index (role `record`, with
//! PostgreSQL).

use std::sync::Arc;
use std::time::Duration;

use service::{LogThrottle, TaskGroup};
use store::MaintenanceRepository;

/// The pending list grows by at most 32 MB between two runs. Above that, writers move the entries
/// themselves.
const FLUSH_INTERVAL: Duration = Duration::from_millis(1500);

/// Flushes the search index periodically until `tasks` is cancelled.
pub(super) async fn run_search_index_flushes(
    maintenance: Arc<dyn MaintenanceRepository>,
    tasks: TaskGroup,
) {
    static LOG_THROTTLE: LogThrottle = LogThrottle::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep(FLUSH_INTERVAL) => {}
            () = tasks.cancelled() => return,
        }
        if let Err(error) = maintenance.flush_search_index().await
            && LOG_THROTTLE.should_log()
        {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(
                error,
                "cannot flush the search index; recording is slower until a flush succeeds; if a \
                 privilege is missing, make the database user the owner of the table \
                 connection_search"
            );
        }
    }
}
