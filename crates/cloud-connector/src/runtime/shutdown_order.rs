//! Stops the components of the connector in this order: HTTP server, publisher, ingest, background
//! tasks, recorder, database, embedded broker.

use std::time::Duration;

use tokio::time::Instant;

use super::App;

/// Timeout for stopping the publisher, and minimum timeout for closing the database. The minimum
/// applies even if the grace period has already ended.
const MIN_STAGE_TIMEOUT: Duration = Duration::from_millis(500);

impl App {
    /// Stops all tasks within `shutdown.grace_period`. Returns false if ingest, a background task,
    /// the recorder or the database did not stop in time.
    pub async fn stop(self) -> bool {
        let deadline = Instant::now() + self.grace_period;
        let remaining_time = || deadline.saturating_duration_since(Instant::now());
        let mut all_finished = true;
        let mut report_stage = |stage: &'static str, is_finished: bool| {
            if is_finished {
                tracing::debug!(stage, "shutdown stage finished");
            } else {
                tracing::error!(stage, "shutdown stage timed out");
                all_finished = false;
            }
        };

        tracing::info!(grace_period = ?self.grace_period, "shutting down");
        self.health.begin_shutdown();
        // The HTTP server gets only a part of the grace period. Otherwise slow HTTP requests could
        // use the time that the recorder needs for its last commit.
        if !self.http_tasks.stop(self.grace_period / 4).await {
            tracing::warn!("requests aborted at shutdown");
        }
        self.publisher_tasks.stop(MIN_STAGE_TIMEOUT).await;
        if let Some(broker) = &self.broker {
            broker.stop_accepting_messages();
        }
        // Ingest stops before the recorder, because ingest waits until the recorder has committed
        // the messages in flight.
        let is_finished = self.ingest_tasks.stop(remaining_time() / 2).await;
        report_stage("ingest", is_finished);
        let is_finished = self.background_tasks.stop(remaining_time()).await;
        report_stage("background", is_finished);
        let is_finished = self.recorder_tasks.stop(remaining_time()).await;
        report_stage("recorder", is_finished);
        // The database can be closed even if the recorder has not committed all messages. The
        // uncommitted messages were not acknowledged, so the broker or the client sends them again.
        let store_timeout = remaining_time().max(MIN_STAGE_TIMEOUT);
        let close_store = tokio::time::timeout(store_timeout, self.store.close());
        report_stage("store", close_store.await.is_ok());
        // The embedded broker stops last. Until then, it acknowledges the messages that the
        // recorder commits.
        if let Some(broker) = &self.broker {
            broker.stop().await;
        }
        tracing::info!(clean = all_finished, "shutdown finished");
        all_finished
    }
}
