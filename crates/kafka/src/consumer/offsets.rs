//! Start offsets and commits of a consumer. All functions with a `client` block the thread.
//!
//! Each committed offset has a label: the id of the topic from which the offset was read. After a
//! topic was deleted and created again, the label differs from the id of the new topic, and the
//! offset is not used. A commit follows a check of the topic id, so an offset of a deleted topic is
//! normally not committed at all. The label covers the case that the topic is recreated between the
//! check and the commit.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::{CommitMode, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError as ClientError;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::client::Client;
use super::commit_order::CommitOrder;
use crate::topic_identity::{TopicId, fetch_topic_id};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The part of the commit metadata before the topic id.
const LABEL_PREFIX: &str = "topic_id=";

/// Offsets by partition.
pub(crate) type Offsets = BTreeMap<i32, i64>;

/// Result of [`check_and_commit`].
pub(super) enum CheckOutcome {
    /// The topic is still the same. The offsets are committed. Contains the end offset of each
    /// partition.
    Unchanged { end_offsets: Offsets },
    /// The topic was deleted and created again. Nothing was committed.
    Recreated,
}

/// The offsets from which a consumer reads its partitions.
pub(super) struct StartOffsets {
    pub topic_id: Option<TopicId>,
    pub offsets: Offsets,
}

/// Determines the offsets from which to read the partitions. Returns `None` if an id is expected and
/// the topic has another one.
pub(super) fn fetch_start_offsets(
    client: &Client,
    topic: &str,
    partitions: &[i32],
    expected_id: Option<&TopicId>,
) -> Result<Option<StartOffsets>, String> {
    let GroupOffsets {
        topic_id,
        partitions,
    } = fetch_group_offsets(client, topic, partitions, REQUEST_TIMEOUT)?;
    if expected_id.is_some() && expected_id != topic_id.as_ref() {
        return Ok(None);
    }
    for (partition, offsets) in &partitions {
        if let StartOffset::Beginning {
            reason: Some(reason),
        } = offsets.start
        {
            tracing::warn!(
                topic,
                partition,
                reason,
                "the committed offset is not valid in this topic; reading from the beginning"
            );
        }
    }
    let offsets = partitions
        .iter()
        .map(|(partition, offsets)| (*partition, offsets.next_offset()))
        .collect();
    Ok(Some(StartOffsets { topic_id, offsets }))
}

/// The progress of a consumer group in a topic.
pub(crate) struct GroupOffsets {
    topic_id: Option<TopicId>,
    pub partitions: BTreeMap<i32, PartitionOffsets>,
}

/// The progress of a consumer group in a partition.
pub(crate) struct PartitionOffsets {
    start: StartOffset,
    log: LogRange,
}

impl PartitionOffsets {
    /// Returns the offset of the first message that the group has not processed.
    pub fn next_offset(&self) -> i64 {
        match self.start {
            StartOffset::Committed(offset) => offset,
            StartOffset::Beginning { .. } => self.log.lowest,
        }
    }

    /// Returns the offset after the last message of the partition.
    pub fn end(&self) -> i64 {
        self.log.end
    }
}

/// Requests the committed offsets of the client's consumer group, and the first and last offsets of
/// the partitions. Each of the requests takes at most `timeout`.
pub(crate) fn fetch_group_offsets<C: ConsumerContext>(
    client: &impl rdkafka::consumer::Consumer<C>,
    topic: &str,
    partitions: &[i32],
    timeout: Duration,
) -> Result<GroupOffsets, String> {
    let topic_id = fetch_topic_id(client.client(), topic, timeout)?;
    let committed = client
        .committed_offsets(partition_list(topic, partitions, Offset::Invalid), timeout)
        .map_err(|error| error.to_string())?;
    let lowest = fetch_log_offsets(client, topic, partitions, Offset::Beginning, timeout)?;
    let end = fetch_log_offsets(client, topic, partitions, Offset::End, timeout)?;
    let partitions = partitions.iter().map(|partition| {
        let committed = committed.find_partition(topic, *partition);
        let committed = committed.map(|element| Committed {
            offset: element.offset().to_raw().unwrap_or(-1),
            label: element.metadata().to_owned(),
        });
        let log = LogRange {
            lowest: lowest.get(partition).copied().unwrap_or(0),
            end: end.get(partition).copied().unwrap_or(0),
        };
        let start = start_offset(committed.as_ref(), topic_id.as_ref(), log);
        (*partition, PartitionOffsets { start, log })
    });
    Ok(GroupOffsets {
        partitions: partitions.collect(),
        topic_id,
    })
}

struct Committed {
    offset: i64,
    label: String,
}

#[derive(Clone, Copy)]
struct LogRange {
    lowest: i64,
    end: i64,
}

#[derive(Debug, PartialEq, Eq)]
enum StartOffset {
    Committed(i64),
    /// The reason is `None` if no offset was committed.
    Beginning {
        reason: Option<&'static str>,
    },
}

/// Decides whether a committed offset is valid. An offset without a label was committed by another
/// implementation or an earlier version.
fn start_offset(
    committed: Option<&Committed>,
    topic_id: Option<&TopicId>,
    log: LogRange,
) -> StartOffset {
    let Some(committed) = committed.filter(|committed| committed.offset >= 0) else {
        return StartOffset::Beginning { reason: None };
    };
    let label = committed.label.strip_prefix(LABEL_PREFIX);
    let is_of_other_topic = match (label.map(TopicId::from), topic_id) {
        (Some(label), Some(topic_id)) => label != *topic_id,
        _ => false,
    };
    if is_of_other_topic {
        return StartOffset::Beginning {
            reason: Some("it was committed for a topic that was deleted"),
        };
    }
    if committed.offset > log.end {
        return StartOffset::Beginning {
            reason: Some("it is after the end of the partition"),
        };
    }
    StartOffset::Committed(committed.offset.max(log.lowest))
}

/// Replaces the assignment of the client.
pub(super) fn assign(client: &Client, topic: &str, offsets: &Offsets) -> Result<(), String> {
    let list = offset_list(topic, offsets, None).map_err(|error| error.to_string())?;
    client.assign(&list).map_err(|error| error.to_string())
}

/// Commits offsets if the topic still has the expected id.
pub(super) fn check_and_commit(
    client: &Client,
    topic: &str,
    topic_id: Option<&TopicId>,
    offsets_to_commit: &Offsets,
    assigned_partitions: &[i32],
    commit_order: &CommitOrder,
) -> Result<CheckOutcome, String> {
    if !has_topic_id(client, topic, topic_id)? {
        return Ok(CheckOutcome::Recreated);
    }
    commit_order
        .run(|| commit(client, topic, topic_id, offsets_to_commit))
        .unwrap_or_else(|| Err("the partitions were revoked".to_owned()))?;
    let end_offsets = fetch_log_offsets(
        client,
        topic,
        assigned_partitions,
        Offset::End,
        REQUEST_TIMEOUT,
    )?;
    Ok(CheckOutcome::Unchanged { end_offsets })
}

/// Commits offsets if the topic still has the expected id. Returns false if the topic has another
/// id.
pub(super) fn commit_if_unchanged(
    client: &Client,
    topic: &str,
    topic_id: Option<&TopicId>,
    offsets: &Offsets,
) -> Result<bool, String> {
    let is_unchanged = has_topic_id(client, topic, topic_id)?;
    if is_unchanged {
        commit(client, topic, topic_id, offsets)?;
    }
    Ok(is_unchanged)
}

fn has_topic_id(client: &Client, topic: &str, topic_id: Option<&TopicId>) -> Result<bool, String> {
    let found = fetch_topic_id(client.client(), topic, REQUEST_TIMEOUT)?;
    Ok(found.as_ref() == topic_id)
}

fn commit(
    client: &Client,
    topic: &str,
    topic_id: Option<&TopicId>,
    offsets: &Offsets,
) -> Result<(), String> {
    if offsets.is_empty() {
        return Ok(());
    }
    offset_list(topic, offsets, topic_id)
        .and_then(|list| client.commit(&list, CommitMode::Sync))
        .map_err(|error| error.to_string())
}

/// Requests the lowest offset or the end offset of each partition.
fn fetch_log_offsets<C: ConsumerContext>(
    client: &impl rdkafka::consumer::Consumer<C>,
    topic: &str,
    partitions: &[i32],
    position: Offset,
    timeout: Duration,
) -> Result<Offsets, String> {
    // Kafka uses the numbers of the logical offsets also as special timestamps.
    let found = client
        .offsets_for_times(partition_list(topic, partitions, position), timeout)
        .map_err(|error| error.to_string())?;
    let mut offsets = Offsets::new();
    for element in found.elements() {
        element.error().map_err(|error| error.to_string())?;
        let Offset::Offset(offset) = element.offset() else {
            let partition = element.partition();
            return Err(format!("Kafka returned no offset of partition {partition}"));
        };
        offsets.insert(element.partition(), offset);
    }
    Ok(offsets)
}

/// Returns a list of partitions that all have the same offset.
pub(crate) fn partition_list(
    topic: &str,
    partitions: &[i32],
    offset: Offset,
) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for partition in partitions {
        // This fails only for an offset that does not fit into the list. The logical offsets fit.
        let _ = list.add_partition_offset(topic, *partition, offset);
    }
    list
}

pub(crate) fn offset_list(
    topic: &str,
    offsets: &Offsets,
    topic_id: Option<&TopicId>,
) -> Result<TopicPartitionList, ClientError> {
    let mut list = TopicPartitionList::with_capacity(offsets.len());
    for (partition, offset) in offsets {
        let mut element = list.add_partition(topic, *partition);
        element.set_offset(Offset::Offset(*offset))?;
        if let Some(topic_id) = topic_id {
            element.set_metadata(format!("{LABEL_PREFIX}{topic_id}"));
        }
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: LogRange = LogRange {
        lowest: 10,
        end: 100,
    };

    fn start_of(offset: i64, label: &str, topic_id: Option<&str>) -> StartOffset {
        let committed = Committed {
            offset,
            label: label.to_owned(),
        };
        let topic_id = topic_id.map(TopicId::from);
        start_offset(Some(&committed), topic_id.as_ref(), LOG)
    }

    #[test]
    fn an_offset_that_was_committed_for_this_topic_is_used() {
        let expected = StartOffset::Committed(50);
        assert_eq!(start_of(50, "topic_id=new", Some("new")), expected);
        // Committed by an earlier version, or the cluster has no topic ids.
        assert_eq!(start_of(50, "", Some("new")), expected);
        assert_eq!(start_of(50, "topic_id=new", None), expected);
        assert_eq!(
            start_of(100, "topic_id=new", Some("new")),
            StartOffset::Committed(100)
        );
    }

    #[test]
    fn an_offset_that_was_committed_for_a_deleted_topic_is_not_used() {
        let start = start_of(50, "topic_id=old", Some("new"));
        assert!(matches!(start, StartOffset::Beginning { reason: Some(_) }));
    }

    #[test]
    fn an_offset_after_the_end_of_the_partition_is_not_used() {
        for (label, topic_id) in [("", Some("new")), ("", None), ("topic_id=new", Some("new"))] {
            let start = start_of(101, label, topic_id);
            assert!(matches!(start, StartOffset::Beginning { reason: Some(_) }));
        }
    }

    #[test]
    fn a_partition_without_a_committed_offset_is_read_from_its_beginning() {
        let beginning = StartOffset::Beginning { reason: None };
        assert_eq!(start_offset(None, None, LOG), beginning);
        assert_eq!(start_of(-1001, "", Some("new")), beginning);
    }

    #[test]
    fn an_offset_whose_message_was_deleted_is_raised_to_the_lowest_offset() {
        let start = start_of(3, "topic_id=new", Some("new"));
        assert_eq!(start, StartOffset::Committed(10));
    }
}
