//! Positions of a consumer in its assigned partitions.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::caught_up::CaughtUp;
use super::offsets::Offsets;

/// A partition with unread messages is stalled if its position has not changed for this time.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The positions of a consumer in its assigned partitions.
#[derive(Default)]
pub(super) struct Progress {
    partitions: BTreeMap<i32, PartitionProgress>,
}

struct PartitionProgress {
    /// Offset after the last processed message.
    processed: i64,
    /// Offset after the last message that the consumer returned.
    returned: i64,
    /// The last committed offset. `None` if this consumer has not committed an offset yet.
    committed: Option<i64>,
    /// The latest time at which the position changed or no message was unread.
    last_progress: Instant,
    /// Whether the position was after the end of the partition at the previous check.
    was_after_end: bool,
    caught_up: CaughtUp,
}

/// Result of [`Progress::compare`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    /// Number of messages that are not processed.
    pub lag: i64,
    /// Partitions with unread messages whose position has not changed for a while.
    pub stalled_partitions: Vec<i32>,
    /// Partitions whose position is after the end, also at the previous check.
    pub partitions_after_end: Vec<i32>,
}

impl Progress {
    /// Replaces all partitions.
    pub fn start(&mut self, start_offsets: &Offsets) {
        let last_progress = Instant::now();
        let new_progress = |offset: i64| PartitionProgress {
            processed: offset,
            returned: offset,
            committed: None,
            last_progress,
            was_after_end: false,
            caught_up: CaughtUp::default(),
        };
        self.partitions = start_offsets
            .iter()
            .map(|(partition, offset)| (*partition, new_progress(*offset)))
            .collect();
    }

    pub fn clear(&mut self) {
        self.partitions.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    pub fn assigned_partitions(&self) -> Vec<i32> {
        self.partitions.keys().copied().collect()
    }

    /// Notes that the consumer returned a message.
    pub fn on_returned(&mut self, partition: i32, offset: i64) {
        if let Some(progress) = self.partitions.get_mut(&partition) {
            progress.returned = offset + 1;
        }
    }

    /// Notes that all messages up to this offset are processed.
    pub fn on_processed(&mut self, partition: i32, offset: i64) {
        if let Some(progress) = self.partitions.get_mut(&partition)
            && offset + 1 > progress.processed
        {
            progress.processed = offset + 1;
            progress.last_progress = Instant::now();
        }
    }

    /// Notes that the messages wait for another topic, so that no partition is stalled yet.
    pub fn reset_stall_timer(&mut self) {
        for progress in self.partitions.values_mut() {
            progress.last_progress = Instant::now();
        }
    }

    /// Returns the positions that are not committed. This includes the start offsets of a new
    /// assignment, so that an offset without a label gets one.
    pub fn offsets_to_commit(&self) -> Offsets {
        let partitions = self.partitions.iter();
        let uncommitted =
            partitions.filter(|(_, progress)| progress.committed != Some(progress.processed));
        uncommitted
            .map(|(partition, progress)| (*partition, progress.processed))
            .collect()
    }

    pub fn on_committed(&mut self, offsets: &Offsets) {
        for (partition, offset) in offsets {
            if let Some(progress) = self.partitions.get_mut(partition) {
                progress.committed = Some(*offset);
            }
        }
    }

    /// Compares the positions with the end offsets, which must be newer than the positions in
    /// `checked_offsets`. `fetch_position` returns the offset up to which librdkafka has fetched a
    /// partition.
    pub fn compare(
        &mut self,
        checked_offsets: &Offsets,
        end_offsets: &Offsets,
        fetch_position: impl Fn(i32) -> Option<i64>,
    ) -> Comparison {
        let mut comparison = Comparison::default();
        for (partition, progress) in &mut self.partitions {
            let Some(end) = end_offsets.get(partition) else {
                continue;
            };
            let is_after_end = checked_offsets.get(partition).is_some_and(|it| it > end);
            if is_after_end && progress.was_after_end {
                comparison.partitions_after_end.push(*partition);
            }
            progress.was_after_end = is_after_end;
            let lag = (end - progress.processed).max(0);
            // The last offsets of a partition may contain no messages, for example after
            // transactions. Then librdkafka has fetched everything, and nothing is in flight.
            let has_read_all = progress.returned == progress.processed
                && fetch_position(*partition).is_some_and(|position| position >= *end);
            if lag == 0 || has_read_all {
                progress.last_progress = Instant::now();
            } else {
                comparison.lag += lag;
                if progress.last_progress.elapsed() >= STALL_TIMEOUT {
                    comparison.stalled_partitions.push(*partition);
                }
            }
        }
        comparison
    }

    /// Returns the time up to which each partition is processed. `end_offsets` was read after `checked_at`.
    pub fn processed_until(
        &mut self,
        checked_at: Instant,
        end_offsets: &Offsets,
    ) -> BTreeMap<i32, Instant> {
        let mut times = BTreeMap::new();
        for (partition, progress) in &mut self.partitions {
            if let Some(end) = end_offsets.get(partition) {
                progress.caught_up.add_end(checked_at, *end);
            }
            if let Some(time) = progress.caught_up.on_processed(progress.processed) {
                times.insert(*partition, time);
            }
        }
        times
    }

    /// Returns the current positions.
    pub fn processed_offsets(&self) -> Offsets {
        let partitions = self.partitions.iter();
        partitions
            .map(|(partition, progress)| (*partition, progress.processed))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started_at(offset: i64) -> Progress {
        let mut progress = Progress::default();
        progress.start(&Offsets::from([(0, offset)]));
        progress
    }

    fn compare(progress: &mut Progress, end: i64, fetch_position: i64) -> Comparison {
        let checked = progress.processed_offsets();
        let end_offsets = Offsets::from([(0, end)]);
        progress.compare(&checked, &end_offsets, |_| Some(fetch_position))
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_with_unread_messages_and_no_progress_is_stalled() {
        let mut progress = started_at(5);
        tokio::time::advance(STALL_TIMEOUT).await;
        let comparison = compare(&mut progress, 8, 5);
        assert_eq!(
            (comparison.lag, comparison.stalled_partitions),
            (3, vec![0])
        );

        progress.on_returned(0, 5);
        progress.on_processed(0, 5);
        let comparison = compare(&mut progress, 8, 6);
        assert_eq!((comparison.lag, comparison.stalled_partitions), (2, vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_is_returned_but_never_processed_is_a_stall() {
        let mut progress = started_at(5);
        progress.on_returned(0, 5);
        tokio::time::advance(STALL_TIMEOUT).await;
        assert_eq!(compare(&mut progress, 6, 6).stalled_partitions, [0]);
    }

    #[tokio::test(start_paused = true)]
    async fn offsets_without_messages_at_the_end_are_neither_lag_nor_a_stall() {
        let mut progress = started_at(5);
        tokio::time::advance(STALL_TIMEOUT).await;
        assert_eq!(compare(&mut progress, 6, 6), Comparison::default());
    }

    #[tokio::test]
    async fn a_position_after_the_end_is_reported_at_the_second_check() {
        let mut progress = started_at(5);
        assert_eq!(compare(&mut progress, 4, 5), Comparison::default());
        assert_eq!(compare(&mut progress, 4, 5).partitions_after_end, [0]);
    }

    #[tokio::test]
    async fn each_position_is_committed_once() {
        let mut progress = started_at(5);
        assert_eq!(progress.offsets_to_commit(), Offsets::from([(0, 5)]));
        progress.on_processed(0, 9);
        progress.on_processed(0, 7);
        let offsets = progress.offsets_to_commit();
        assert_eq!(offsets, Offsets::from([(0, 10)]));
        progress.on_committed(&offsets);
        assert!(progress.offsets_to_commit().is_empty());
    }
}
