//! Shutdown order: HTTP and publisher, then ingest, which produces work for the recorder, then the
//! recorder, the database, and last the embedded broker.

use std::time::Duration;

use tokio::time::Instant;

use super::App;

/// Minimum time for a stage that runs after the grace period has ended.
const MIN_STAGE_TIMEOUT: Duration = Duration::from_millis(500);

impl App {
    /// Stops all tasks within `shutdown.grace_period`. Returns false if a stage timed out.
    pub async fn stop(self) -> bool {
        let deadline = Instant::now() + self.grace_period;
        let remaining = || deadline.saturating_duration_since(Instant::now());
        let mut clean = true;
        let mut report = |stage: &'static str, finished: bool| {
            if finished {
                tracing::debug!(stage, "shutdown stage finished");
            } else {
                tracing::error!(stage, "shutdown stage timed out");
                clean = false;
            }
        };

        tracing::info!(grace_period = ?self.grace_period, "shutting down");
        self.health.begin_shutdown();
        // A slow HTTP client must not use up the time that the recorder needs for its last commit.
        if !self.http_tasks.stop(self.grace_period / 4).await {
            tracing::warn!("requests aborted at shutdown");
        }
        self.publisher_tasks.stop(MIN_STAGE_TIMEOUT).await;
        if let Some(broker) = &self.broker {
            broker.stop_accepting_messages();
        }
        // Messages in flight here wait for the recorder, which therefore stops later.
        report("ingest", self.ingest_tasks.stop(remaining() / 2).await);
        report("background", self.background_tasks.stop(remaining()).await);
        report("recorder", self.recorder_tasks.stop(remaining()).await);
        // Messages that are not committed by now were not acknowledged: their sender resends them.
        let close_store =
            tokio::time::timeout(remaining().max(MIN_STAGE_TIMEOUT), self.store.close());
        report("store", close_store.await.is_ok());
        // The broker stops last: until then, it acknowledges the messages that the recorder
        // commits.
        if let Some(broker) = &self.broker {
            broker.stop().await;
        }
        tracing::info!(clean, "shutdown finished");
        clean
    }
}
