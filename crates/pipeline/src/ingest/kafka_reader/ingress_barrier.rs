//! Keeps messages of the slow topic until the ingress topic is processed.
//!
//! When a client is over its budget, `ingest` forwards its next messages to the slow topic. Its earlier
//! presence messages may still be queued in the ingress topic. Therefore the first message in the slow
//! topic requires that everything that is in the ingress topic when the message is read is recorded
//! first. Later messages of the client follow in the same partition of the slow topic.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::time::sleep;

use super::PreparedMessage;
use crate::ingest::metrics;
use kafka::{GroupProgress, PartitionProgress};
use service::LogThrottle;

/// Interval at which the progress in the ingress topic is read while messages wait for it.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The progress of the recorder in the ingress topic, by partition.
pub(super) type CheckResult = Result<BTreeMap<i32, PartitionProgress>, String>;

/// Keeps messages of the slow topic until the ingress topic is processed.
pub struct IngressBarrier {
    /// The progress of the consumer group that reads the ingress topic.
    ingress: GroupProgress,
    /// The kept messages, in the order in which they were read.
    kept_messages: Vec<PreparedMessage>,
    /// Number of kept messages that were read before the offsets in `required_offsets`.
    covered_count: usize,
    /// The offsets that the recorder must reach before the covered messages are released. `None` before
    /// the first check.
    required_offsets: Option<BTreeMap<i32, i64>>,
    /// The running check. `None` if no message is kept.
    check: Option<BoxFuture<'static, CheckResult>>,
}

impl IngressBarrier {
    /// Creates a barrier. `ingress` is the progress of the consumer group that reads the ingress topic.
    #[must_use]
    pub fn new(ingress: GroupProgress) -> Self {
        Self {
            ingress,
            kept_messages: Vec::new(),
            covered_count: 0,
            required_offsets: None,
            check: None,
        }
    }

    /// Returns whether messages wait for the ingress topic.
    pub(super) fn is_waiting(&self) -> bool {
        self.check.is_some()
    }

    /// Returns whether these messages must be kept: a message requires the ingress topic, or earlier
    /// messages are kept.
    pub(super) fn must_keep(&self, messages: &BTreeMap<i32, Vec<PreparedMessage>>) -> bool {
        let mut messages = messages.values().flatten();
        self.is_waiting() || messages.any(|message| message.after_ingress)
    }

    pub(super) fn keep(&mut self, messages: BTreeMap<i32, Vec<PreparedMessage>>) {
        self.kept_messages.extend(messages.into_values().flatten());
        if !self.is_waiting() {
            self.cover_all_messages();
        }
        metrics::set_waiting_for_ingress(self.kept_messages.len());
    }

    /// Discards the kept messages of these partitions.
    pub(super) fn discard_messages(&mut self, partitions: &[i32]) {
        let is_kept = |message: &PreparedMessage| !partitions.contains(&message.partition);
        let (covered, _) = self.kept_messages.split_at(self.covered_count);
        self.covered_count = covered.iter().filter(|message| is_kept(message)).count();
        self.kept_messages.retain(is_kept);
    }

    /// Returns the messages that may be submitted.
    pub(super) fn on_checked(&mut self, progress: CheckResult) -> Vec<PreparedMessage> {
        static LOG_THROTTLE: LogThrottle = LogThrottle::new();
        let progress = match progress {
            Ok(progress) => progress,
            Err(error) => {
                if LOG_THROTTLE.should_log() {
                    tracing::warn!(error, "failed to read the progress in the ingress topic");
                }
                self.start_check(CHECK_INTERVAL);
                return Vec::new();
            }
        };
        let required_offsets = self
            .required_offsets
            .get_or_insert_with(|| end_offsets(&progress));
        if !has_passed(required_offsets, &progress) {
            self.start_check(CHECK_INTERVAL);
            return Vec::new();
        }
        self.check = None;
        let later_messages = self.kept_messages.split_off(self.covered_count);
        let mut released_messages = std::mem::replace(&mut self.kept_messages, later_messages);
        if self.kept_messages.iter().any(|it| it.after_ingress) {
            self.cover_all_messages();
        } else {
            released_messages.append(&mut self.kept_messages);
        }
        metrics::set_waiting_for_ingress(self.kept_messages.len());
        released_messages
    }

    /// Starts to wait until everything that is in the ingress topic now is processed.
    fn cover_all_messages(&mut self) {
        self.covered_count = self.kept_messages.len();
        self.required_offsets = None;
        self.start_check(Duration::ZERO);
    }

    fn start_check(&mut self, delay: Duration) {
        let ingress = self.ingress.clone();
        let check = async move {
            sleep(delay).await;
            ingress.read().await
        };
        self.check = Some(check.boxed());
    }
}

/// Waits for the running check. Waits forever if no check runs.
pub(super) async fn next_check(barrier: &mut Option<IngressBarrier>) -> CheckResult {
    let check = barrier.as_mut().and_then(|barrier| barrier.check.as_mut());
    match check {
        Some(check) => check.await,
        None => std::future::pending().await,
    }
}

fn end_offsets(progress: &BTreeMap<i32, PartitionProgress>) -> BTreeMap<i32, i64> {
    progress
        .iter()
        .map(|(partition, progress)| (*partition, progress.end_offset))
        .collect()
}

/// Returns whether the recorder has reached the required offsets. If the topic was recreated, the old
/// messages no longer exist, so the end of the new partition is sufficient.
fn has_passed(
    required_offsets: &BTreeMap<i32, i64>,
    progress: &BTreeMap<i32, PartitionProgress>,
) -> bool {
    required_offsets.iter().all(|(partition, required)| {
        progress
            .get(partition)
            .is_none_or(|progress| progress.next_offset >= (*required).min(progress.end_offset))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(partitions: &[(i32, i64, i64)]) -> BTreeMap<i32, PartitionProgress> {
        let to_progress = |(partition, next_offset, end_offset): &(i32, i64, i64)| {
            let progress = PartitionProgress {
                next_offset: *next_offset,
                end_offset: *end_offset,
            };
            (*partition, progress)
        };
        partitions.iter().map(to_progress).collect()
    }

    #[test]
    fn barrier_passes_when_every_partition_has_reached_its_earlier_end() {
        let required = end_offsets(&progress(&[(0, 3, 5), (1, 7, 7)]));
        assert!(!has_passed(&required, &progress(&[(0, 4, 9), (1, 7, 7)])));
        assert!(!has_passed(&required, &progress(&[(0, 9, 9), (1, 6, 7)])));
        assert!(has_passed(&required, &progress(&[(0, 5, 9), (1, 7, 9)])));
    }

    #[test]
    fn messages_of_a_deleted_topic_are_not_awaited() {
        let required = end_offsets(&progress(&[(0, 3, 500), (1, 3, 500)]));
        assert!(!has_passed(&required, &progress(&[(0, 1, 2), (1, 2, 2)])));
        assert!(has_passed(&required, &progress(&[(0, 2, 2)])));
    }
}
