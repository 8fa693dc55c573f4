//! The check of the topic, which runs once per second and commits the stored offsets.

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use rdkafka::consumer::Consumer as _;
use tokio::time::Instant;

use super::Consumer;
use super::message::ConsumerEvent;
use super::offsets::{self, CheckOutcome, Offsets};
use super::operations::{RECREATED_TOPIC, run_blocking};

/// Interval at which the consumer checks the topic and commits offsets.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A check that runs on another thread.
pub(super) struct RunningCheck {
    outcome: BoxFuture<'static, Result<CheckOutcome, String>>,
    started_at: Instant,
    /// The positions at the start of the check.
    positions: Offsets,
    committing: Offsets,
}

impl RunningCheck {
    /// Returns the outcome if the check has finished.
    pub fn try_outcome(&mut self) -> Option<Result<CheckOutcome, String>> {
        (&mut self.outcome).now_or_never()
    }
}

/// Waits for the running check. Waits forever if no check runs.
pub(super) async fn wait_for_check(
    check: &mut Option<RunningCheck>,
) -> Result<CheckOutcome, String> {
    match check {
        Some(check) => (&mut check.outcome).await,
        None => std::future::pending().await,
    }
}

impl Consumer {
    pub(super) fn start_check(&mut self) {
        let (client, state) = (self.client.clone(), self.state.clone());
        let (topic_id, commit_order) = (self.topic_id.clone(), self.commit_order.clone());
        let committing = self.progress.offsets_to_commit();
        let partitions = self.progress.assigned_partitions();
        let offsets = committing.clone();
        let started_at = Instant::now();
        let outcome = run_blocking(move || {
            offsets::check_and_commit(
                &client,
                &state.topic,
                topic_id.as_ref(),
                &offsets,
                &partitions,
                &commit_order,
            )
        });
        self.check = Some(RunningCheck {
            outcome,
            started_at,
            positions: self.progress.processed_offsets(),
            committing,
        });
    }

    pub(super) fn on_check_finished(
        &mut self,
        outcome: Result<CheckOutcome, String>,
    ) -> Option<ConsumerEvent> {
        let check = self.check.take()?;
        self.next_check_at = Instant::now() + CHECK_INTERVAL;
        let end_offsets = match outcome {
            Ok(CheckOutcome::Unchanged { end_offsets }) => end_offsets,
            Ok(CheckOutcome::Recreated) => {
                return self.replace_client(RECREATED_TOPIC);
            }
            Err(error) => {
                if self.error_log_throttle.should_log() {
                    let topic = &self.state.topic;
                    tracing::warn!(topic, error, "failed to commit Kafka offsets; retrying");
                }
                return None;
            }
        };
        self.progress.on_committed(&check.committing);
        let callbacks = self.client.client().context().clone();
        let comparison = self
            .progress
            .compare(&check.positions, &end_offsets, |partition| {
                callbacks.fetch_position(partition)
            });
        let processed_until = self
            .progress
            .processed_until(check.started_at, &end_offsets);
        self.state.set_processed_until(processed_until);
        (self.report_lag)(comparison.lag);
        if !comparison.partitions_after_end.is_empty() {
            let partitions = comparison.partitions_after_end;
            let problem = format!("the position is after the end of the partitions {partitions:?}");
            return self.replace_client(&problem);
        }
        let stalled = comparison.stalled_partitions;
        self.state.set_stall((!stalled.is_empty()).then(|| {
            let lag = comparison.lag;
            format!("no progress in the partitions {stalled:?}; {lag} messages are not processed")
        }));
        None
    }
}
