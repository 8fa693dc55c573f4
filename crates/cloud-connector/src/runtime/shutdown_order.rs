//! Stops the components of the connector in this order: HTTP server, publisher, ingest, background
//! tasks, recorder, database, embedded broker.

use std::time::Duration;

use tokio::time::Instant;

use super::{App, LocalAddress};
use service::{Supervisor, TaskGroup};

/// Timeout for stopping the publisher, and minimum timeout for closing the database. The minimum
/// applies even if the grace period has already ended.
const MIN_STAGE_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum time for the embedded broker to send DISCONNECT to all clients.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The task groups of a process, one per shutdown stage.
pub(super) struct Stages {
    /// HTTP servers, their connections and requests.
    pub http: TaskGroup,
    /// The MQTT connections that publish messages to clients through an external broker and receive
    /// their responses.
    pub publisher: TaskGroup,
    /// Tasks that submit messages to the recorder or produce them to Kafka.
    pub ingest: TaskGroup,
    /// Tasks that no other task waits for.
    pub background: TaskGroup,
    /// The writers of the recorder.
    pub recorder: TaskGroup,
    /// The embedded broker and its connections.
    pub broker: TaskGroup,
}

impl Stages {
    /// Creates empty task groups.
    pub fn new(supervisor: &Supervisor) -> Self {
        let new_group = || TaskGroup::supervised_by(supervisor);
        Self {
            http: new_group(),
            publisher: new_group(),
            ingest: new_group(),
            background: new_group(),
            recorder: new_group(),
            broker: new_group(),
        }
    }
}

impl App {
    /// Stops all tasks within `shutdown.grace_period`. Returns false if ingest, a background task,
    /// the recorder or the database did not stop in time.
    pub(super) async fn stop(self) -> bool {
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
        if let Some(data_dir) = &self.info.data_dir
            && let Err(error) = LocalAddress::remove(data_dir)
        {
            tracing::warn!(%error, "cannot remove the address of the REST API from the data folder");
        }
        // The HTTP server gets only a part of the grace period. Otherwise slow HTTP requests could
        // use the time that the recorder needs for its last commit.
        if !self.stages.http.stop(self.grace_period / 4).await {
            tracing::warn!("requests aborted at shutdown");
        }
        self.stages.publisher.stop(MIN_STAGE_TIMEOUT).await;
        if let Some(broker) = &self.broker {
            broker.stop_accepting_messages();
        }
        // Ingest stops before the recorder, because ingest waits until the recorder has committed
        // the messages in flight.
        let is_finished = self.stages.ingest.stop(remaining_time() / 2).await;
        report_stage("ingest", is_finished);
        let is_finished = self.stages.background.stop(remaining_time()).await;
        report_stage("background", is_finished);
        let is_finished = self.stages.recorder.stop(remaining_time()).await;
        report_stage("recorder", is_finished);
        // The database can be closed even if the recorder has not committed all messages. The
        // uncommitted messages were not acknowledged, so the broker or the client sends them again.
        let store_timeout = remaining_time().max(MIN_STAGE_TIMEOUT);
        let close_store = self.database.repositories.maintenance.close();
        let close_store = tokio::time::timeout(store_timeout, close_store);
        report_stage("store", close_store.await.is_ok());
        // The embedded broker stops last. Until then, it acknowledges the messages that the
        // recorder commits.
        if let Some(broker) = &self.broker {
            broker.disconnect_all();
        }
        self.stages.broker.stop(DISCONNECT_TIMEOUT).await;
        tracing::info!(clean = all_finished, "shutdown finished");
        all_finished
    }
}
