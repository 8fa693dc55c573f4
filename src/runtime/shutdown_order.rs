//! Stopping, in the order that loses nothing: what comes in first, what others wait for last.

use std::time::Duration;

use tokio::time::Instant;

use super::App;

/// Even without time left, closing files takes only this.
const AT_LEAST: Duration = Duration::from_millis(500);

impl App {
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
        // A caller that does not finish must not use up the time of those who wait for a commit.
        let http = self.http.stop(self.grace / 4).await;
        if !http {
            tracing::warn!("requests were cut off that did not end in time");
        }
        self.outlet.stop(AT_LEAST).await;
        if let Some(broker) = &self.broker {
            broker.stop_accepting_messages();
        }
        // What is under way there waits for the recorder, which still runs.
        stage("sources", self.sources.stop(left() / 2).await);
        stage("background", self.background.stop(left()).await);
        stage("record", self.recording.stop(left()).await);
        // What the queue does not have by now, nobody was told of: the broker sends it again.
        let closing = tokio::time::timeout(left().max(AT_LEAST), self.store.close()).await;
        stage("store", closing.is_ok());
        if let Some(broker) = &self.broker {
            broker.stop().await;
        }
        tracing::info!(clean, "stopped");
        clean
    }
}
