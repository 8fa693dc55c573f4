//! Property test of the recorder. The test generates random messages, batches, crashes and
//! redeliveries. Then the test compares the state in the store with the state that a simple model
//! computes. The test runs on SQLite and on PostgreSQL.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use domain::{ClientId, Clock, Identity, IngestStamp, OrgId, Tenant, Timestamp};
use pipeline::record::{
    HandshakeErrorSender, PartitionLease, QueuePosition, QueueTopic, Recorder, RecorderConfig,
    RecorderDeps, RecorderInput,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use protocol::{DialectSettings, InboundMessage, TopicScheme};
use serde_json::{Value, json};
use service::{ByteBudget, TaskGroup};
use store::{DeadLetterFilter, DeadLetterLimits};
use tenant::{MassLossDetector, TenantLookup, TenantLookupOutcome};
use test_support::stores::TestStore;

const STALE_ONLINE_WINDOW_SECONDS: i64 = 600;
const CLIENT_COUNT: usize = 3;
const ORG_ID: &str = "1";

/// Content of a message that a client publishes.
#[derive(Debug, Clone)]
enum MessageContent {
    /// An online message or a handshake.
    Online {
        /// Number from which the message id is derived. There are only few different numbers, so
        /// duplicate message ids occur. 0 means that the message has no message id.
        id_number: u8,
        /// `sent` time minus receive time, in seconds. `None` means that the `sent` time is
        /// invalid.
        sent_offset_seconds: Option<i64>,
        is_handshake: bool,
        /// Whether the broker delivers the message as a retained message.
        is_retained: bool,
    },
    Offline {
        /// True for a disconnect event of the status dialect, false for an offline message of the
        /// handshake dialect.
        is_disconnect_event: bool,
    },
    /// An invalid message, which becomes a dead letter. The number selects one of several payloads.
    Invalid(u8),
    /// A message of an unknown type, which the recorder ignores.
    Ignored,
}

#[derive(Debug, Clone)]
struct Message {
    /// Index of the client that publishes the message.
    client_index: usize,
    content: MessageContent,
}

/// A heartbeat of a client. Heartbeats have their own Kafka topic. Therefore the recorder can
/// receive heartbeats and other messages in a different order than the broker.
#[derive(Debug, Clone)]
struct Heartbeat {
    client_index: usize,
    /// Number of messages that the broker received before the heartbeat.
    broker_messages_before: usize,
    /// Number of messages that the recorder received before the heartbeat.
    recorder_messages_before: usize,
}

/// The delivery of one batch of messages to the recorder.
#[derive(Debug, Clone)]
struct Delivery {
    batch_size: usize,
    /// Number of messages at the end of the batch that are delivered again. The redelivery
    /// simulates a crash.
    redelivered_count: usize,
}

/// A random sequence of messages, heartbeats and batches.
#[derive(Debug, Clone)]
struct Case {
    messages: Vec<Message>,
    heartbeats: Vec<Heartbeat>,
    deliveries: Vec<Delivery>,
    /// The `ingest` hosts that forward the messages in turn. If the list is empty, one host with the
    /// right clock forwards all messages without ingest stamps.
    hosts: Vec<Host>,
}

/// An `ingest` host that takes over the session at the broker.
#[derive(Debug, Clone)]
struct Host {
    /// Number of messages that the broker received before the host takes over.
    messages_before: usize,
    /// Difference between the host's clock and the true time, in seconds.
    clock_offset: i64,
}

/// The receive time that the active host assigns, and the ingest stamp.
#[derive(Debug, Clone, Copy)]
struct Received {
    /// Receive time according to the clock of the host, in seconds.
    at: i64,
    stamp: Option<IngestStamp>,
}

impl Case {
    /// Returns the receive time and the stamp of the message that the broker delivered at
    /// `true_time`.
    fn received(&self, true_time: i64) -> Received {
        let is_active = |host: &&Host| message_received_at(host.messages_before) - 5 <= true_time;
        let epoch = self.hosts.iter().take_while(is_active).count();
        let host = epoch.checked_sub(1).map(|index| &self.hosts[index]);
        Received {
            at: true_time + host.map_or(0, |host| host.clock_offset),
            stamp: (!self.hosts.is_empty()).then(|| IngestStamp {
                session: 1,
                epoch: i64::try_from(epoch).unwrap(),
                sequence: true_time,
            }),
        }
    }
}

/// Generates random message contents.
fn any_message_content() -> impl Strategy<Value = MessageContent> {
    let sent_offset_seconds = prop_oneof![
        4 => (-20_i64..0).prop_map(Some),
        2 => prop_oneof![Just(-599), Just(-600), Just(-601), Just(-3600)].prop_map(Some),
        1 => prop_oneof![Just(5_i64), Just(100_000)].prop_map(Some),
        1 => Just(None),
    ];
    prop_oneof![
        6 => (0_u8..5, sent_offset_seconds, any::<bool>(), prop::bool::weighted(0.2)).prop_map(
            |(id_number, sent_offset_seconds, is_handshake, is_retained)| MessageContent::Online {
                id_number,
                sent_offset_seconds,
                is_handshake,
                is_retained,
            }
        ),
        3 => any::<bool>()
            .prop_map(|is_disconnect_event| MessageContent::Offline { is_disconnect_event }),
        1 => (0_u8..4).prop_map(MessageContent::Invalid),
        1 => Just(MessageContent::Ignored),
    ]
}

/// Generates random cases.
fn any_case() -> impl Strategy<Value = Case> {
    let messages = prop::collection::vec(
        (0..CLIENT_COUNT, any_message_content()).prop_map(|(client_index, content)| Message {
            client_index,
            content,
        }),
        1..30,
    );
    messages.prop_flat_map(|messages| {
        let count = messages.len();
        let heartbeat = (0..CLIENT_COUNT, 0..=count, 0..=count).prop_map(
            |(client_index, broker_messages_before, recorder_messages_before)| Heartbeat {
                client_index,
                broker_messages_before,
                recorder_messages_before,
            },
        );
        let delivery =
            (1..8_usize, 0..6_usize).prop_map(|(batch_size, redelivered_count)| Delivery {
                batch_size,
                redelivered_count,
            });
        let clock_offset = prop::sample::select(vec![-3600, -30, -10, 0, 10, 30, 3600]);
        let host = (0..=count, clock_offset).prop_map(|(messages_before, clock_offset)| Host {
            messages_before,
            clock_offset,
        });
        (
            Just(messages),
            prop::collection::vec(heartbeat, 0..4),
            prop::collection::vec(delivery, 1..40),
            prop::collection::vec(host, 0..4),
        )
            .prop_map(|(messages, heartbeats, deliveries, mut hosts)| {
                hosts.sort_by_key(|host| host.messages_before);
                Case {
                    messages,
                    heartbeats,
                    deliveries,
                    hosts,
                }
            })
    })
}

// --- model --------------------------------------------------------------------------------------

/// The last online message that the model applied.
#[derive(Debug, Clone, PartialEq)]
struct LastOnline {
    id_number: u8,
    /// `sent` time of the message, in seconds.
    sent_at: i64,
    /// Value of the fact `message_number`. Each online message has a different number.
    message_number: usize,
}

/// State of a client in the model. All times are in seconds.
#[derive(Debug, Clone, PartialEq)]
struct ModelClient {
    last_online: LastOnline,
    /// True receive time of the offline message that followed the last online message. `None` if no
    /// offline message followed.
    offline_received_at: Option<i64>,
    /// True receive time of the latest heartbeat.
    last_heartbeat_at: Option<i64>,
}

impl ModelClient {
    /// Returns the number of the online message whose facts the store returns. `None` if the client
    /// is disconnected.
    fn visible_message_number(&self) -> Option<usize> {
        match self.offline_received_at {
            Some(offline_at) if self.last_heartbeat_at <= Some(offline_at) => None,
            _ => Some(self.last_online.message_number),
        }
    }
}

/// Returns the true receive time of the message with the index `message_index` in the case, in
/// seconds.
fn message_received_at(message_index: usize) -> i64 {
    1000 + i64::try_from(message_index).unwrap() * 10
}

/// Returns the true receive time of a heartbeat, in seconds. The time is between the receive times of
/// two messages.
fn heartbeat_received_at(heartbeat: &Heartbeat) -> i64 {
    message_received_at(heartbeat.broker_messages_before) - 5
}

/// Returns the receive time of the initial online messages, in seconds. Each client publishes an
/// initial online message before the messages of the case.
fn initial_online_received_at() -> i64 {
    message_received_at(0) - 10
}

/// `id_number` of the initial online messages. The messages of a case have other numbers.
const INITIAL_ONLINE_ID_NUMBER: u8 = 9;

/// Applies each message of the case once and in order. Returns the expected state of each client.
fn run_model(case: &Case) -> Vec<ModelClient> {
    let mut clients: Vec<ModelClient> = (0..CLIENT_COUNT)
        .map(|client| ModelClient {
            last_online: LastOnline {
                id_number: INITIAL_ONLINE_ID_NUMBER,
                sent_at: initial_online_received_at(),
                message_number: client,
            },
            offline_received_at: None,
            last_heartbeat_at: None,
        })
        .collect();
    for (index, message) in case.messages.iter().enumerate() {
        let client = &mut clients[message.client_index];
        let received_at = message_received_at(index);
        match message.content {
            MessageContent::Offline { .. } => client.offline_received_at = Some(received_at),
            MessageContent::Online {
                id_number,
                sent_offset_seconds,
                is_handshake,
                is_retained,
            } => {
                let id_number = effective_id_number(id_number, is_handshake);
                let host_time = case.received(received_at).at;
                let client_time = sent_offset_seconds
                    .map(|offset| received_at + offset)
                    .filter(|sent_at| *sent_at <= host_time);
                let sent_at = client_time.unwrap_or(host_time);
                let has_same_id = id_number != 0 && id_number == client.last_online.id_number;
                let seconds_before_last = client.last_online.sent_at - sent_at;
                let is_stale = client_time.is_some()
                    && (1..=STALE_ONLINE_WINDOW_SECONDS).contains(&seconds_before_last);
                let is_applied = match client.offline_received_at {
                    Some(_) => !(is_retained && has_same_id),
                    None => !has_same_id && !is_stale,
                };
                if is_applied {
                    client.last_online = LastOnline {
                        id_number,
                        sent_at,
                        message_number: message_number(index),
                    };
                    client.offline_received_at = None;
                }
            }
            MessageContent::Invalid(_) | MessageContent::Ignored => {}
        }
    }
    for heartbeat in &case.heartbeats {
        let client = &mut clients[heartbeat.client_index];
        let received_at = Some(heartbeat_received_at(heartbeat));
        client.last_heartbeat_at = client.last_heartbeat_at.max(received_at);
    }
    clients
}

/// Returns the number of the message with the index `message_index` in the case. The numbers below
/// `CLIENT_COUNT` are the numbers of the initial online messages.
fn message_number(message_index: usize) -> usize {
    CLIENT_COUNT + message_index
}

/// Returns the number from which the message id is derived. For a handshake, another
/// number replaces 0 (no message id), because a handshake without a message id is invalid.
fn effective_id_number(id_number: u8, is_handshake: bool) -> u8 {
    if is_handshake && id_number == 0 {
        5
    } else {
        id_number
    }
}

// --- recorder and store -------------------------------------------------------------------------

/// A fake tenant lookup that finds the same tenant for all clients.
struct SingleTenantLookup;

#[async_trait]
impl TenantLookup for SingleTenantLookup {
    async fn lookup(&self, _: &ClientId, _: tokio::time::Instant) -> TenantLookupOutcome {
        TenantLookupOutcome::from_identity(Identity::for_tenant(&Tenant {
            org_id: OrgId::new(ORG_ID).unwrap(),
            account: String::new(),
        }))
    }

    async fn check_availability(&self) -> Result<String, String> {
        Ok(String::new())
    }
}

/// A clock that always returns the same time. The time is later than the receive times of all
/// messages.
struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        timestamp_at(1_000_000)
    }
}

/// Converts a time of the model to a timestamp. The model counts time in seconds.
fn timestamp_at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

/// Runs one case on a recorder. The client ids are different in each case.
struct CaseRunner {
    topic_scheme: TopicScheme,
    recorder: Recorder,
    client_ids: Vec<String>,
    ingress_lease: PartitionLease,
    answers_lease: PartitionLease,
}

impl CaseRunner {
    async fn new(store: &TestStore, tasks: &TaskGroup) -> Self {
        let recorder_deps = RecorderDeps {
            presence: store.presence.clone(),
            tenant_lookup: Arc::new(SingleTenantLookup),
            inventory_reporter: None,
            mass_loss_detector: MassLossDetector::default(),
            source_registrar: None,
            handshake_error_sender: HandshakeErrorSender::channel().0,
            clock: Arc::new(FixedClock),
            message_budget: ByteBudget::new(128 * 1024 * 1024),
            config: RecorderConfig {
                max_batch_size: 1000,
                tenant_lookup_timeout: Duration::from_secs(5),
                last_seen_interval: Duration::from_mins(5),
                stale_online_window: Duration::from_secs(
                    STALE_ONLINE_WINDOW_SECONDS.unsigned_abs(),
                ),
                writers: 1,
                dead_letter_limits: DeadLetterLimits {
                    max_dead_letters_per_client: 20,
                },
            },
        };
        let recorder = Recorder::start(recorder_deps, tasks);
        let acquire = async |topic| {
            recorder
                .acquire_partitions(topic, &[0], "test")
                .await
                .unwrap()[0]
        };
        let ingress_lease = acquire(QueueTopic::Ingress).await;
        let answers_lease = acquire(QueueTopic::Answers).await;
        let client_id_prefix = uuid::Uuid::new_v4().simple().to_string();
        Self {
            topic_scheme: TopicScheme::new(vec!["p".into()], &DialectSettings::default()),
            client_ids: (0..CLIENT_COUNT)
                .map(|n| format!("{client_id_prefix}-{n}"))
                .collect(),
            recorder,
            ingress_lease,
            answers_lease,
        }
    }

    /// Creates the recorder input for a message. `kafka_offset` is the offset of a message in the
    /// ingress topic. For a message in the answers topic, `kafka_offset` is `None`.
    fn recorder_input(
        &self,
        topic: String,
        payload: Bytes,
        received: Received,
        retained: bool,
        kafka_offset: Option<i64>,
    ) -> RecorderInput {
        RecorderInput::Message {
            topic: self.topic_scheme.parse(&topic).unwrap(),
            message: InboundMessage {
                topic,
                payload,
                retained,
                is_operator_replay: false,
                is_last_will: None,
                is_takeover: false,
                received_at: timestamp_at(received.at),
                ingest_stamp: received.stamp,
                truncated_from: None,
            },
            position: kafka_offset.map(|offset| QueuePosition {
                topic: None,
                partition: 0,
                offset,
            }),
            from_answers_topic: kafka_offset.is_none(),
        }
    }

    fn canonical_facts(&self, client_index: usize, message_number: usize) -> Value {
        json!({"message_number": message_number, "of": self.client_ids[client_index]})
    }

    fn online_payload(
        &self,
        client_index: usize,
        message_number: usize,
        message_id: &str,
        sent: &str,
    ) -> Bytes {
        let facts = self.canonical_facts(client_index, message_number);
        let message = json!({"type": "connection-status", "message_id": message_id, "sent": sent,
            "content": {"state": "online", "canonical_facts": facts}});
        Bytes::from(message.to_string())
    }

    fn handshake_payload(
        &self,
        client_index: usize,
        message_number: usize,
        message_id: &str,
        sent: &str,
    ) -> Bytes {
        let facts = self.canonical_facts(client_index, message_number);
        let message = json!({"type": "host-handshake", "message_id": message_id, "sent": sent,
            "payload": {"canonical_facts": facts}});
        Bytes::from(message.to_string())
    }

    /// Creates the recorder input for the initial online message of a client.
    fn initial_online_input(&self, case: &Case, client_index: usize) -> RecorderInput {
        let topic = format!("p/{}/control/out", self.client_ids[client_index]);
        let sent = timestamp_at(initial_online_received_at()).to_string();
        let message_id = format!("id-{INITIAL_ONLINE_ID_NUMBER}");
        let payload = self.online_payload(client_index, client_index, &message_id, &sent);
        let received = case.received(initial_online_received_at());
        self.recorder_input(topic, payload, received, false, Some(0))
    }

    /// Creates the recorder input for the message with the index `index` in the case.
    fn message_input(&self, case: &Case, index: usize) -> RecorderInput {
        let Message {
            client_index,
            content,
        } = &case.messages[index];
        let client_id = &self.client_ids[*client_index];
        let control_topic = format!("p/{client_id}/control/out");
        let handshake_topic = format!("p/in/{client_id}");
        let offset = i64::try_from(index).unwrap() + 1;
        let mut is_retained_message = false;
        let (topic, payload) = match content {
            MessageContent::Online {
                id_number,
                sent_offset_seconds,
                is_handshake,
                is_retained,
            } => {
                is_retained_message = *is_retained;
                let message_id = match effective_id_number(*id_number, *is_handshake) {
                    0 => String::new(),
                    id_number => format!("id-{id_number}"),
                };
                let sent = match sent_offset_seconds {
                    Some(offset) => timestamp_at(message_received_at(index) + offset).to_string(),
                    None => "yesterday".to_owned(),
                };
                let message_number = message_number(index);
                if *is_handshake {
                    let payload =
                        self.handshake_payload(*client_index, message_number, &message_id, &sent);
                    (handshake_topic, payload)
                } else {
                    (
                        control_topic,
                        self.online_payload(*client_index, message_number, &message_id, &sent),
                    )
                }
            }
            MessageContent::Offline {
                is_disconnect_event: false,
            } => {
                let payload = br#"{"type":"offline"}"#;
                (handshake_topic, Bytes::from_static(payload))
            }
            MessageContent::Offline {
                is_disconnect_event: true,
            } => {
                let payload = br#"{"type":"event","content":"disconnect"}"#;
                (control_topic, Bytes::from_static(payload))
            }
            MessageContent::Invalid(kind) => {
                let payload: &'static [u8] = match kind {
                    0 => b"\xff\xfe",
                    1 => b"[1]",
                    2 => br#"{"type":"connection-status","content":{"state":"asleep"}}"#,
                    _ => br#"{"type":"host-handshake","payload":{"canonical_facts":{}}}"#,
                };
                let topic = if *kind == 2 {
                    control_topic
                } else {
                    handshake_topic
                };
                (topic, Bytes::from_static(payload))
            }
            MessageContent::Ignored => (control_topic, Bytes::from_static(br#"{"type":"news"}"#)),
        };
        let received = case.received(message_received_at(index));
        self.recorder_input(topic, payload, received, is_retained_message, Some(offset))
    }

    /// Submits a batch of messages from the ingress topic, and waits until the recorder has written
    /// the batch.
    async fn deliver_batch(&self, inputs: Vec<RecorderInput>) {
        let inputs = inputs.into_iter().map(|input| self.recorder.prepare(input));
        let receipt = self
            .recorder
            .submit_from_partition(self.ingress_lease, inputs.collect());
        receipt.wait_until_durable().await.unwrap();
    }

    /// Delivers the heartbeats that the recorder must receive after exactly `message_count`
    /// messages.
    async fn deliver_heartbeats(&self, case: &Case, message_count: usize) {
        for heartbeat in &case.heartbeats {
            if heartbeat.recorder_messages_before != message_count {
                continue;
            }
            let topic = format!("p/{}/data/out", self.client_ids[heartbeat.client_index]);
            let received = case.received(heartbeat_received_at(heartbeat));
            let input = self.recorder_input(topic, Bytes::new(), received, false, None);
            let receipt = self
                .recorder
                .submit_from_partition(self.answers_lease, vec![self.recorder.prepare(input)]);
            receipt.wait_until_durable().await.unwrap();
        }
    }

    /// Delivers the initial online messages to the recorder. Then delivers all messages and
    /// heartbeats of the case. Some messages are delivered more than once.
    async fn deliver_case(&self, case: &Case) {
        let initial = (0..CLIENT_COUNT).map(|client| self.initial_online_input(case, client));
        self.deliver_batch(initial.collect()).await;
        let mut deliveries = case.deliveries.iter().cycle();
        let (mut next_index, mut delivered_count) = (0, 0);
        self.deliver_heartbeats(case, 0).await;
        while next_index < case.messages.len() {
            let Delivery {
                batch_size,
                redelivered_count,
            } = deliveries.next().unwrap().clone();
            let end_index = (next_index + batch_size).min(case.messages.len());
            let inputs = (next_index..end_index).map(|index| self.message_input(case, index));
            self.deliver_batch(inputs.collect()).await;
            for message_count in delivered_count + 1..=end_index {
                self.deliver_heartbeats(case, message_count).await;
            }
            // Simulates a crash after the write and before the offset commit: the last messages of
            // the batch are delivered again. Messages are redelivered only after a batch with new
            // messages. Otherwise the loop might not end.
            let redelivered_count = if end_index > delivered_count {
                redelivered_count
            } else {
                0
            };
            delivered_count = delivered_count.max(end_index);
            next_index = end_index.saturating_sub(redelivered_count);
        }
    }

    /// Compares the state in the store with the state of the model.
    async fn check_store(&self, store: &TestStore, case: &Case) -> Result<(), TestCaseError> {
        let org_id = OrgId::new(ORG_ID).unwrap();
        for (client, expected) in run_model(case).iter().enumerate() {
            let client_id = ClientId::new(&self.client_ids[client]).unwrap();
            let connection = store
                .connections
                .find_connection_for_org(&org_id, &client_id)
                .await
                .unwrap();
            let stored_facts = connection.as_ref().map(|row| &row.info.canonical_facts);
            let expected_facts = expected
                .visible_message_number()
                .map(|message_number| self.canonical_facts(client, message_number));
            prop_assert_eq!(
                stored_facts,
                expected_facts.as_ref(),
                "client {} {:?}",
                client,
                expected
            );
            // The stored presence state must be correct, too, because the recorder applies later
            // messages to the stored state.
            let client_ids = std::slice::from_ref(&client_id);
            let states = store.presence.load_client_states(client_ids).await.unwrap();
            let is_offline_stored = states[&client_id]
                .connection
                .as_ref()
                .is_none_or(|row| row.offline_message_overruled);
            prop_assert_eq!(
                is_offline_stored,
                expected.offline_received_at.is_some(),
                "client {}",
                client
            );
        }
        self.check_dead_letters(store, case).await
    }

    /// Checks that each client has one dead letter for each different invalid payload.
    async fn check_dead_letters(
        &self,
        store: &TestStore,
        case: &Case,
    ) -> Result<(), TestCaseError> {
        let mut expected: BTreeMap<usize, BTreeSet<u8>> = BTreeMap::new();
        for message in &case.messages {
            if let MessageContent::Invalid(kind) = message.content {
                expected
                    .entry(message.client_index)
                    .or_default()
                    .insert(kind);
            }
        }
        for (client, client_id) in self.client_ids.iter().enumerate() {
            let filter = DeadLetterFilter {
                client: ClientId::new(client_id).ok(),
                ..DeadLetterFilter::default()
            };
            let dead_letters = store
                .dead_letters
                .list_dead_letters(&filter, 100)
                .await
                .unwrap();
            let expected_count = expected.get(&client).map_or(0, BTreeSet::len);
            prop_assert_eq!(
                dead_letters.len(),
                expected_count,
                "dead letters of client {}",
                client
            );
        }
        Ok(())
    }
}

async fn run_and_check_case(store: &TestStore, case: &Case) -> Result<(), TestCaseError> {
    let tasks = TaskGroup::new();
    let runner = CaseRunner::new(store, &tasks).await;
    runner.deliver_case(case).await;
    let result = runner.check_store(store, case).await;
    tasks.stop(Duration::from_secs(5)).await;
    result
}

/// Runs random cases. The environment variable `PROPTEST_CASES` sets the number of cases. A failure
/// prints the seed. To repeat the same cases, set `PROPTEST_SEED` to that seed.
#[expect(clippy::disallowed_methods, reason = "the developer selects the cases")]
fn check_random_cases(store: &TestStore, runtime: &tokio::runtime::Runtime) {
    let seed: [u8; 32] = match std::env::var("PROPTEST_SEED") {
        Ok(text) => {
            serde_json::from_str(&text).expect("PROPTEST_SEED must be a JSON array of 32 bytes")
        }
        Err(_) => [
            uuid::Uuid::new_v4().into_bytes(),
            uuid::Uuid::new_v4().into_bytes(),
        ]
        .concat()
        .try_into()
        .unwrap(),
    };
    let case_count = std::env::var("PROPTEST_CASES").map_or(150, |cases| cases.parse().unwrap());
    let config = Config {
        cases: case_count,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let outcome = runner.run(&any_case(), |case| {
        runtime.block_on(run_and_check_case(store, &case))
    });
    if let Err(error) = outcome {
        panic!(
            "repeat with PROPTEST_SEED='{}'\n{error}",
            Value::from(seed.to_vec())
        );
    }
}

fn start_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn recorder_and_model_compute_the_same_state_on_sqlite() {
    let runtime = start_runtime();
    let test_store = runtime.block_on(test_support::stores::open_sqlite());
    check_random_cases(&test_store, &runtime);
}

#[test]
fn recorder_and_model_compute_the_same_state_on_postgres() {
    let runtime = start_runtime();
    let test_store = runtime.block_on(test_support::stores::open_postgres());
    check_random_cases(&test_store, &runtime);
}
