//! Kafka partitions: positions of messages, and the ownership that fences the batches of a previous
//! owner.

use domain::{IngestStamp, Timestamp};

/// Receive time, queue position and ingest stamp of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedAt {
    /// Receive time of the message.
    pub time: Timestamp,
    /// Position of the message in Kafka. `None` for a heartbeat, and in deployments without Kafka.
    pub position: Option<QueuePosition>,
    /// Order of the message in its session at the broker. `None` if `ingest` had no epoch.
    pub stamp: Option<IngestStamp>,
}

impl ReceivedAt {
    /// Creates a receive time without a queue position and without an ingest stamp.
    #[must_use]
    pub fn from_time(time: Timestamp) -> Self {
        Self {
            time,
            position: None,
            stamp: None,
        }
    }

    /// Returns whether the message was received after `other`.
    ///
    /// The ingest stamps decide if both messages have a stamp of the same session. Otherwise the
    /// receive times decide. The SQL statements use the same rule (`received_after!`).
    #[must_use]
    pub fn is_after(&self, other: &Self) -> bool {
        let by_stamp = match (&self.stamp, &other.stamp) {
            (Some(stamp), Some(other_stamp)) => stamp.is_after(other_stamp),
            _ => None,
        };
        by_stamp.unwrap_or(self.time > other.time)
    }

    /// Returns the topic of the message. `None` in deployments without Kafka, and if the cluster does
    /// not support topic ids.
    #[must_use]
    pub fn topic(&self) -> Option<i64> {
        self.position.and_then(|position| position.topic)
    }

    /// Returns the partition of the message. `None` in deployments without Kafka.
    #[must_use]
    pub fn partition(&self) -> Option<i32> {
        self.position.map(|position| position.partition)
    }

    /// Returns the offset of the message in its partition. `None` in deployments without Kafka.
    #[must_use]
    pub fn offset(&self) -> Option<i64> {
        self.position.map(|position| position.offset)
    }
}

/// Position of a message in a Kafka topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePosition {
    /// The first 64 bits of Kafka's topic id. A topic that is deleted and created again has another
    /// id. `None` if the cluster does not support topic ids.
    pub topic: Option<i64>,
    /// Partition number.
    pub partition: i32,
    /// Offset of the message in the partition.
    pub offset: i64,
}

impl QueuePosition {
    /// Returns whether both positions belong to the same topic. Returns `None` if the topic of a
    /// position is unknown.
    #[must_use]
    pub fn has_topic_of(&self, other: &Self) -> Option<bool> {
        Some(self.topic? == other.topic?)
    }
}

/// A Kafka topic that the recorder reads. The name of the topic in Kafka is configurable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueueTopic {
    /// Topic of presence messages.
    Ingress,
    /// Topic of responses and heartbeats.
    Answers,
    /// Topic of all messages of clients that are over their budget.
    Slow,
}

impl QueueTopic {
    /// Returns the topic's name in the database and in logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Answers => "answers",
            Self::Slow => "slow",
        }
    }
}

/// Ownership of a Kafka partition. The owner may write the partition's messages to the database
/// until another process acquires the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionLease {
    /// Kafka topic of the partition.
    pub queue: QueueTopic,
    /// Partition number.
    pub partition: i32,
    /// Epoch that [`PresenceRepository::acquire_partitions`] returned.
    ///
    /// [`PresenceRepository::acquire_partitions`]: crate::PresenceRepository::acquire_partitions
    pub epoch: i64,
}
