//! Compares the database with the model: after each commit of an offset, and at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::connector::MAX_LOOKUP_ATTEMPTS;
use crate::database::{ClientRow, Database};
use crate::gateway::TenantTruth;
use crate::kafka_cluster::{Commit, KafkaCluster};
use crate::messages::Content;
use crate::model::{AppliedOnline, ClientModel, Connectivity};
use crate::mqtt_broker::MqttBroker;
use crate::plan::Plan;
use crate::world::World;
use store::QueueTopic;

/// Checks that an offset is committed only after all messages before it are durable.
pub struct CommitChecker {
    pub world: Arc<World>,
    pub database: Arc<Database>,
    /// Clients whose online messages become dead letters.
    pub rejected_clients: BTreeSet<String>,
    prefixes: Mutex<BTreeMap<i32, Prefix>>,
}

/// The messages of a partition of the ingress topic up to the highest committed offset.
#[derive(Default)]
struct Prefix {
    end: i64,
    models: BTreeMap<String, ClientModel>,
}

impl CommitChecker {
    pub fn new(
        world: &Arc<World>,
        database: &Arc<Database>,
        rejected_clients: BTreeSet<String>,
    ) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            database: database.clone(),
            rejected_clients,
            prefixes: Mutex::default(),
        })
    }

    /// Checks a commit that the cluster has accepted.
    pub fn check(&self, cluster: &KafkaCluster, commit: Commit) {
        if commit.topic != QueueTopic::Ingress {
            return;
        }
        let mut prefixes = self.prefixes.lock();
        let prefix = prefixes.entry(commit.partition).or_default();
        if commit.offset <= prefix.end {
            return;
        }
        let records = cluster.records(commit.topic, commit.partition, prefix.end, commit.offset);
        let mut clients = BTreeSet::new();
        for (record, offset) in records.iter().zip(prefix.end..) {
            let client_id = &record.received.publication.client_id;
            if !self.rejected_clients.contains(client_id) {
                clients.insert(client_id.clone());
                let model = prefix.models.entry(client_id.clone()).or_default();
                model.apply(&record.received, Some((commit.partition, offset)));
            }
        }
        prefix.end = commit.offset;
        let rows = rows_by_client(&self.database);
        let dead_letters = dead_letters_by_client(&self.database);
        for client_id in clients {
            let model = &prefix.models[&client_id];
            if let Some((partition, offset)) = model.position() {
                let stored = rows.get(&client_id).and_then(|rows| rows[0].position);
                let is_durable = stored.is_some_and(|(stored_partition, stored_offset)| {
                    stored_partition == i64::from(partition) && stored_offset >= offset
                });
                if !is_durable {
                    self.world.report_violation(
                        Some(&client_id),
                        format!(
                            "the offset {} of partition {partition} is committed, but the message \
                             at {offset} is not durable: the database has the position {stored:?}",
                            commit.offset
                        ),
                    );
                }
            }
            let stored = dead_letters.get(&client_id);
            for dead_letter in &model.dead_letters {
                if !stored.is_some_and(|stored| stored.contains_key(dead_letter)) {
                    let text = format!("the dead letter {dead_letter:?} is not durable");
                    self.world.report_violation(Some(&client_id), text);
                }
            }
        }
    }
}

/// Returns the rows of each client. A client has at least one row.
fn rows_by_client(database: &Database) -> BTreeMap<String, Vec<ClientRow>> {
    let mut rows: BTreeMap<String, Vec<ClientRow>> = BTreeMap::new();
    for row in database.clients() {
        rows.entry(row.client_id.clone()).or_default().push(row);
    }
    rows
}

type DeadLetters = BTreeMap<(String, String), String>;

/// Returns topic, SHA-256 and reason of the dead letters of each client.
fn dead_letters_by_client(database: &Database) -> BTreeMap<String, DeadLetters> {
    let mut dead_letters: BTreeMap<String, DeadLetters> = BTreeMap::new();
    for row in database.dead_letters() {
        let of_client = dead_letters.entry(row.client_id).or_default();
        of_client.insert((row.topic, row.sha256), row.reason);
    }
    dead_letters
}

/// What the end state is compared with.
pub struct Expectation {
    pub models: BTreeMap<String, ClientModel>,
    pub tenants: BTreeMap<String, TenantTruth>,
}

impl Expectation {
    /// Applies all messages in Kafka. `known_since` has the time at which each client was recorded
    /// for the first time.
    pub fn from_cluster(
        cluster: &KafkaCluster,
        known_since: &BTreeMap<String, Duration>,
        plan: &Plan,
    ) -> Self {
        let mut models: BTreeMap<String, ClientModel> = BTreeMap::new();
        for partition in 0..cluster.partition_count(QueueTopic::Ingress) {
            for (record, offset) in cluster.log(QueueTopic::Ingress, partition).iter().zip(0..) {
                let received = &record.received;
                let client_id = received.publication.client_id.clone();
                // The database accepts these rows only when an operator replays the messages.
                let is_rejected =
                    plan.rejected_clients.contains(&client_id) && !received.is_operator_replay;
                let model = models.entry(client_id).or_default();
                if !is_rejected {
                    model.apply(received, Some((partition, offset)));
                }
            }
        }
        for partition in 0..cluster.partition_count(QueueTopic::Answers) {
            for record in cluster.log(QueueTopic::Answers, partition) {
                let client_id = record.received.publication.client_id.clone();
                let is_certain = known_since
                    .get(&client_id)
                    .is_some_and(|since| *since < record.appended_at);
                let model = models.entry(client_id).or_default();
                model.add_heartbeat(&record.received, is_certain);
            }
        }
        Self {
            models,
            tenants: plan.tenants(),
        }
    }

    /// Reports all differences between the model and the database.
    pub fn check(&self, world: &World, database: &Database) {
        let rows = rows_by_client(database);
        let dead_letters = dead_letters_by_client(database);
        let clients: BTreeSet<&String> = rows
            .keys()
            .chain(self.models.keys())
            .chain(dead_letters.keys())
            .collect();
        for client_id in clients {
            let model = self.models.get(client_id).cloned().unwrap_or_default();
            let client_rows = rows.get(client_id).map_or(&[][..], Vec::as_slice);
            for problem in self.compare_rows(client_id, &model, client_rows) {
                let online = model.latest_online();
                world.report_violation(
                    Some(client_id),
                    format!(
                        "{problem}; expected: {:?} with {online:?} at {:?}; database: \
                         {client_rows:?}",
                        model.connectivity(),
                        model.position()
                    ),
                );
            }
            let stored = dead_letters.get(client_id).cloned().unwrap_or_default();
            let stored: BTreeSet<_> = stored.into_keys().collect();
            for missing in model.dead_letters.difference(&stored) {
                world.report_violation(Some(client_id), format!("missing dead letter {missing:?}"));
            }
            for other in stored.difference(&model.dead_letters) {
                world
                    .report_violation(Some(client_id), format!("unexpected dead letter {other:?}"));
            }
        }
    }

    fn compare_rows(
        &self,
        client_id: &str,
        model: &ClientModel,
        rows: &[ClientRow],
    ) -> Vec<&'static str> {
        let row = match (model.latest_online(), rows) {
            (None, []) => return Vec::new(),
            (None, _) => return vec!["the client must be unknown"],
            (Some(_), []) => return vec!["the client has no row"],
            (Some(_), [row]) => row,
            (Some(_), _) => return vec!["the client has several rows"],
        };
        let mut problems = Vec::new();
        let mut check = |is_correct: bool, problem: &'static str| {
            if !is_correct {
                problems.push(problem);
            }
        };
        match model.connectivity() {
            Connectivity::Connected => check(row.is_connected, "the client must be connected"),
            Connectivity::Disconnected => {
                check(!row.is_connected, "the client must be disconnected");
            }
            Connectivity::Either => {}
        }
        if let Some(AppliedOnline { online, sent }) = model.latest_online() {
            check(row.message_id == online.message_id, "wrong message id");
            check(row.message_sent == sent.as_microsecond(), "wrong send time");
            check(row.facts == online.facts(), "wrong facts");
        }
        let position = model.position();
        let position = position.map(|(partition, offset)| (i64::from(partition), offset));
        check(
            row.position == position,
            "wrong position of the latest presence message",
        );
        problems.extend(check_tenant(self.tenants.get(client_id).copied(), row));
        problems
    }

    /// Checks that the model agrees with what the clients did: the last presence message that the
    /// broker received decides, unless a heartbeat followed it.
    pub fn check_clients(&self, world: &World, broker: &MqttBroker, plan: &Plan) {
        for client in &plan.clients {
            let client_id = &client.factory.client_id;
            let messages = broker.presence_messages(client_id);
            let Some((number, content)) = messages.last() else {
                continue;
            };
            // A retained handshake that was ignored as stale registers the client when the broker
            // delivers it again.
            if plan.rejected_clients.contains(client_id) || client.factory.uses_handshake {
                continue;
            }
            let model = self.models.get(client_id).cloned().unwrap_or_default();
            let connectivity = model.connectivity();
            let is_explained = match content {
                Content::Offline => {
                    connectivity == Connectivity::Disconnected
                        || model
                            .latest_heartbeat_publication()
                            .is_some_and(|heartbeat| heartbeat > *number)
                }
                _ => connectivity == Connectivity::Connected,
            };
            if !is_explained {
                world.report_violation(
                    Some(client_id),
                    format!(
                        "the last presence message of the client is {content:?}, but the messages \
                         in Kafka result in {connectivity:?}"
                    ),
                );
            }
        }
    }
}

/// Compares the tenant and the number of failed lookups in a row with what the gateway knows.
pub fn check_tenant(truth: Option<TenantTruth>, row: &ClientRow) -> Option<&'static str> {
    let tenant = truth.and_then(TenantTruth::final_tenant);
    let expected = tenant.as_ref().map_or(("", ""), |tenant| {
        (tenant.org_id.as_str(), tenant.account.as_str())
    });
    let stored = (row.org_id.as_str(), row.account.as_str());
    let max_attempts = i64::from(MAX_LOOKUP_ATTEMPTS);
    if !row.is_connected {
        // A client can disconnect before the job has looked up its tenant.
        let is_correct = stored == ("", "") || stored == expected;
        return (!is_correct || row.failed_lookups > max_attempts).then_some("wrong tenant");
    }
    if stored != expected {
        return Some("wrong tenant");
    }
    let expected_attempts = if tenant.is_some() { 0 } else { max_attempts };
    (row.failed_lookups != expected_attempts).then_some("wrong number of failed lookups")
}
