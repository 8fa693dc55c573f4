//! Stopping, in the order that loses nothing: what comes in first, what others wait for last.

use std::time::Duration;

use tokio::time::Instant;

use super::Running;

impl Running {
    /// Stops everything within the grace. False if something had to be left behind.
    pub async fn stop(self) -> bool {
        let deadline = Instant::now() + self.grace;
        let left = || deadline.saturating_duration_since(Instant::now());
        let mut clean = true;
        let mut stage = |name: &'static str, done: bool| {
            if done {
                tracing::debug!(stage = name, "stopped");
            } else {
                tracing::error!(stage = name, "did not stop within the grace; leaving it");
                clean = false;
            }
        };

        tracing::info!(grace = ?self.grace, "stopping");
        self.health.stopping();
        stage("http", self.http.stop(left()).await);
        self.broker.close_intake();
        stage("background", self.background.stop(left()).await);
        stage("record", self.recording.stop(left()).await);
        let closing = tokio::time::timeout(left(), self.store.close()).await;
        stage("store", closing.is_ok());
        // Even without time left, clients are told: it takes no longer than writing a packet.
        let farewell = left().max(Duration::from_millis(500));
        stage("broker", self.broker.stop(farewell).await);
        tracing::info!(clean, "stopped");
        clean
    }
}
