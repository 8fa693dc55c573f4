//! A simulated Kafka cluster: logs, consumer groups with rebalances, and committed offsets.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::ingest::kafka_headers;
use crate::messages::Received;
use crate::process::Process;
use crate::world::World;
use store::QueueTopic;

/// Time after which Kafka removes a member that does not respond from its group.
const SESSION_TIMEOUT: Duration = Duration::from_secs(6);

/// A message in a partition.
#[derive(Debug, Clone)]
pub struct Record {
    pub headers: Vec<(&'static str, String)>,
    pub payload: Bytes,
    /// The meaning of the message, for the model.
    pub received: Received,
    /// Virtual time since the start of the schedule.
    pub appended_at: Duration,
    /// Earliest time at which a consumer receives the message.
    pub visible_at: Instant,
}

impl Record {
    pub fn new(received: Received) -> Self {
        Self {
            headers: kafka_headers(&received),
            payload: received.publication.payload.clone(),
            received,
            appended_at: Duration::ZERO,
            visible_at: Instant::now(),
        }
    }
}

/// An event for a member of a group.
#[derive(Debug, Clone)]
pub enum GroupEvent {
    Revoked,
    Assigned {
        generation: u64,
        partitions: Vec<i32>,
    },
}

pub type MemberId = u64;

struct Member {
    process: Arc<Process>,
    generation: u64,
    has_partitions: bool,
    /// Whether the member has given up its partitions and waits for the next assignment.
    is_waiting: bool,
    events: VecDeque<GroupEvent>,
    /// Time since which the process of the member does not respond.
    silent_since: Option<Instant>,
}

#[derive(Default)]
struct Group {
    members: BTreeMap<MemberId, Member>,
    committed: BTreeMap<i32, i64>,
    generation: u64,
    needs_rebalance: bool,
}

struct Topic {
    partitions: Vec<Vec<Record>>,
    group: Group,
}

/// A commit of an offset, for the checks.
#[derive(Debug, Clone, Copy)]
pub struct Commit {
    pub topic: QueueTopic,
    pub partition: i32,
    pub offset: i64,
}

/// A simulated Kafka cluster with the topics for presence messages and for responses.
pub struct KafkaCluster {
    world: Arc<World>,
    topics: Mutex<BTreeMap<QueueTopic, Topic>>,
    next_member: Mutex<MemberId>,
    /// Until this time, the cluster neither accepts nor delivers messages.
    stalled_until: Mutex<Instant>,
}

impl KafkaCluster {
    pub fn new(world: &Arc<World>, partitions: &[(QueueTopic, usize)]) -> Arc<Self> {
        let topics = partitions.iter().map(|(topic, partitions)| {
            let topic_state = Topic {
                partitions: vec![Vec::new(); *partitions],
                group: Group::default(),
            };
            (*topic, topic_state)
        });
        let cluster = Arc::new(Self {
            world: world.clone(),
            topics: Mutex::new(topics.collect()),
            next_member: Mutex::new(0),
            stalled_until: Mutex::new(Instant::now()),
        });
        for (topic, _) in partitions {
            tokio::spawn(cluster.clone().coordinate(*topic));
        }
        cluster
    }

    fn with_topic<T>(&self, topic: QueueTopic, access: impl FnOnce(&mut Topic) -> T) -> T {
        let mut topics = self.topics.lock();
        access(topics.get_mut(&topic).expect("the topic exists"))
    }

    pub fn stall(&self, duration: Duration) {
        *self.stalled_until.lock() = Instant::now() + duration;
    }

    pub fn heal(&self) {
        *self.stalled_until.lock() = Instant::now();
        self.world.notify();
    }

    /// Returns the end of the stall. Returns `None` if the cluster works.
    pub fn stalled_until(&self) -> Option<Instant> {
        let end = *self.stalled_until.lock();
        (Instant::now() < end).then_some(end)
    }

    /// Appends a message to the partition of its client.
    pub fn append(&self, topic: QueueTopic, mut record: Record) {
        let fetch_delay = self.world.network_delay();
        record.appended_at = self.world.elapsed();
        self.world.count("messages in Kafka");
        let received = &record.received;
        let client_id = received.publication.client_id.clone();
        let text = format!("Kafka {}: {}", topic.as_str(), received.describe());
        let (partition, offset) = self.with_topic(topic, |topic| {
            let partition = partition_of(&client_id, topic.partitions.len());
            let log = &mut topic.partitions[partition];
            let previous = log.last().map(|record| record.visible_at);
            let visible_at = Instant::now() + fetch_delay;
            record.visible_at = previous.map_or(visible_at, |previous| previous.max(visible_at));
            log.push(record);
            (partition, log.len() - 1)
        });
        self.world
            .trace(Some(&client_id), format!("{text} at {partition}/{offset}"));
        self.world.notify();
    }

    /// Returns the records of a partition from `first` to before `end`.
    pub fn records(&self, topic: QueueTopic, partition: i32, first: i64, end: i64) -> Vec<Record> {
        self.with_topic(topic, |topic| {
            let log = &topic.partitions[index(partition)];
            log[index_of_offset(first)..index_of_offset(end)].to_vec()
        })
    }

    /// Returns all records of a partition.
    pub fn log(&self, topic: QueueTopic, partition: i32) -> Vec<Record> {
        self.with_topic(topic, |topic| topic.partitions[index(partition)].clone())
    }

    /// Returns the record at a position, or the time at which it becomes visible.
    pub fn fetch(
        &self,
        topic: QueueTopic,
        partition: i32,
        offset: i64,
    ) -> Option<Result<Record, Instant>> {
        let stalled_until = self.stalled_until();
        self.with_topic(topic, |topic| {
            let record = topic.partitions[index(partition)].get(index_of_offset(offset))?;
            let visible_at =
                stalled_until.map_or(record.visible_at, |end| end.max(record.visible_at));
            Some(if visible_at <= Instant::now() {
                Ok(record.clone())
            } else {
                Err(visible_at)
            })
        })
    }

    pub fn partition_count(&self, topic: QueueTopic) -> i32 {
        self.with_topic(topic, |topic| {
            i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX)
        })
    }

    /// Returns the committed offset of a partition.
    pub fn committed(&self, topic: QueueTopic, partition: i32) -> i64 {
        self.with_topic(topic, |topic| {
            topic.group.committed.get(&partition).copied().unwrap_or(0)
        })
    }

    /// Returns the number of messages whose offsets are not committed.
    pub fn lag(&self) -> i64 {
        let topics = self.topics.lock();
        let lags = topics.values().flat_map(|topic| {
            topic.partitions.iter().zip(0..).map(|(log, partition)| {
                let committed = topic.group.committed.get(&partition).copied().unwrap_or(0);
                i64::try_from(log.len()).unwrap_or(i64::MAX) - committed
            })
        });
        lags.sum()
    }

    /// Adds a member to the group of the topic.
    pub fn join(&self, topic: QueueTopic, process: &Arc<Process>) -> MemberId {
        let mut next_member = self.next_member.lock();
        *next_member += 1;
        let member = Member {
            process: process.clone(),
            generation: 0,
            has_partitions: false,
            is_waiting: true,
            events: VecDeque::new(),
            silent_since: None,
        };
        self.with_topic(topic, |topic| {
            topic.group.members.insert(*next_member, member);
            topic.group.needs_rebalance = true;
        });
        self.world.notify();
        *next_member
    }

    /// Removes a member from its group.
    pub fn leave(&self, topic: QueueTopic, member: MemberId) {
        self.with_topic(topic, |topic| {
            topic.group.members.remove(&member);
            topic.group.needs_rebalance = true;
        });
        self.world.notify();
    }

    /// Returns the next event of a member. Fails if the group has removed the member.
    pub fn next_event(
        &self,
        topic: QueueTopic,
        member: MemberId,
    ) -> Result<Option<GroupEvent>, RemovedFromGroup> {
        self.with_topic(topic, |topic| {
            let member = topic.group.members.get_mut(&member);
            Ok(member.ok_or(RemovedFromGroup)?.events.pop_front())
        })
    }

    /// Reports that a member has given up its partitions.
    pub fn rejoin(&self, topic: QueueTopic, member: MemberId) {
        self.with_topic(topic, |topic| {
            if let Some(member) = topic.group.members.get_mut(&member) {
                member.is_waiting = true;
            }
        });
        self.world.notify();
    }

    /// Commits an offset. Kafka rejects the commit of a member with an old generation.
    pub fn commit(
        &self,
        topic: QueueTopic,
        member: MemberId,
        generation: u64,
        partition: i32,
        offset: i64,
    ) -> Option<Commit> {
        let is_accepted = self.with_topic(topic, |topic| {
            let group = &mut topic.group;
            let is_current = group
                .members
                .get(&member)
                .is_some_and(|member| member.generation == generation);
            if is_current {
                group.committed.insert(partition, offset);
            }
            is_current
        });
        let outcome = if is_accepted { "" } else { " rejected" };
        let name = topic.as_str();
        let text = format!("Kafka commit {name} {partition}/{offset} of member {member}{outcome}");
        self.world.trace(None, text);
        self.world.notify();
        is_accepted.then_some(Commit {
            topic,
            partition,
            offset,
        })
    }

    /// Starts a rebalance, as after a change of the partitions.
    pub fn rebalance(&self, topic: QueueTopic) {
        self.with_topic(topic, |topic| topic.group.needs_rebalance = true);
        self.world.notify();
    }

    /// Runs the group coordinator of a topic.
    async fn coordinate(self: Arc<Self>, topic: QueueTopic) {
        loop {
            let mut changes = self.world.changes();
            let session_end = self.remove_silent_members(topic);
            let needs_rebalance = self.with_topic(topic, |topic| {
                std::mem::take(&mut topic.group.needs_rebalance)
            });
            if needs_rebalance {
                self.complete_rebalance(topic).await;
                continue;
            }
            match session_end {
                Some(session_end) => {
                    let _ = timeout_at(session_end, changes.changed()).await;
                }
                None => {
                    let _ = changes.changed().await;
                }
            }
        }
    }

    /// Removes the members that have not responded for too long. Returns the time at which the next
    /// member must be removed.
    fn remove_silent_members(&self, topic: QueueTopic) -> Option<Instant> {
        let now = Instant::now();
        let world = &self.world;
        let mut next_end: Option<Instant> = None;
        self.with_topic(topic, |topic_state| {
            let group = &mut topic_state.group;
            group.members.retain(|id, member| {
                if member.process.is_running() {
                    member.silent_since = None;
                    return true;
                }
                let end = *member.silent_since.get_or_insert(now) + SESSION_TIMEOUT;
                let is_silent = end <= now;
                if is_silent {
                    let text = format!("Kafka removes member {id} of {}", topic.as_str());
                    world.trace(None, text);
                    group.needs_rebalance = true;
                } else {
                    next_end = Some(next_end.map_or(end, |earlier| earlier.min(end)));
                }
                !is_silent
            });
        });
        next_end
    }

    /// Revokes all partitions, waits until the members have given them up, and assigns them again.
    async fn complete_rebalance(&self, topic: QueueTopic) {
        let world = &self.world;
        world.trace(None, format!("Kafka rebalances {}", topic.as_str()));
        world.count("rebalances");
        self.with_topic(topic, |topic| {
            for member in topic.group.members.values_mut() {
                if member.has_partitions {
                    member.is_waiting = false;
                    member.has_partitions = false;
                    member.events.push_back(GroupEvent::Revoked);
                }
            }
        });
        self.world.notify();
        let deadline = Instant::now() + SESSION_TIMEOUT;
        let mut changes = world.changes();
        while !self.with_topic(topic, |topic| {
            topic.group.members.values().all(|member| member.is_waiting)
        }) {
            if timeout_at(deadline, changes.changed()).await.is_err() {
                break;
            }
        }
        sleep_until(Instant::now() + world.network_delay()).await;
        self.assign(topic);
        self.world.notify();
    }

    fn assign(&self, topic: QueueTopic) {
        let world = &self.world;
        self.with_topic(topic, |topic_state| {
            let group = &mut topic_state.group;
            group.members.retain(|id, member| {
                if !member.is_waiting {
                    world.trace(
                        None,
                        format!("Kafka removes member {id} of {}", topic.as_str()),
                    );
                }
                member.is_waiting
            });
            group.generation += 1;
            let mut members: Vec<MemberId> = group.members.keys().copied().collect();
            world.shuffle(&mut members);
            let mut assignment: BTreeMap<MemberId, Vec<i32>> =
                members.iter().map(|member| (*member, Vec::new())).collect();
            for (partition, member) in (0..)
                .take(topic_state.partitions.len())
                .zip(members.iter().cycle())
            {
                assignment.entry(*member).or_default().push(partition);
            }
            for (id, partitions) in assignment {
                world.trace(
                    None,
                    format!(
                        "Kafka assigns {} {partitions:?} to member {id}",
                        topic.as_str()
                    ),
                );
                if let Some(member) = group.members.get_mut(&id) {
                    member.generation = group.generation;
                    member.has_partitions = true;
                    member.is_waiting = false;
                    member.events.push_back(GroupEvent::Assigned {
                        generation: group.generation,
                        partitions,
                    });
                }
            }
        });
    }
}

/// The group has removed the member, because it did not respond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovedFromGroup;

/// Returns the partition of a client.
fn partition_of(client_id: &str, partitions: usize) -> usize {
    let sum: usize = client_id.bytes().map(usize::from).sum();
    sum % partitions
}

fn index(partition: i32) -> usize {
    usize::try_from(partition).expect("a partition is not negative")
}

fn index_of_offset(offset: i64) -> usize {
    usize::try_from(offset).expect("an offset is not negative")
}
