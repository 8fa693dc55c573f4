//! Any sequence of messages, cut into any batches, with crashes and redelivery at any step, ends in
//! the state that a short model gives. On every store, through the real recorder.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cloud_connector::domain::{ClientId, Clock, Identity, OrgId, Tenant, Timestamp};
use cloud_connector::protocol::{HandshakeSegments, InboundMessage, TopicScheme};
use cloud_connector::record::{
    HandshakeErrorSender, PartitionLease, QueuePosition, QueueTopic, Recorder, RecorderConfig,
    RecorderDeps, RecorderInput,
};
use cloud_connector::shutdown::TaskGroup;
use cloud_connector::store::{DeadLetterFilter, DeadLetterLimits, Store};
use cloud_connector::tenant::{MassLossDetector, TenantLookup, TenantLookupOutcome};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

const STALE_ONLINE_WINDOW: i64 = 600;
const CLIENTS: usize = 3;
const ORG: &str = "1";

/// What a client says about its presence.
#[derive(Debug, Clone)]
enum Says {
    /// An online, or a handshake: an id out of few (0 is none), the sender's clock against the time
    /// of receipt (none is unreadable), the broker's replay of it or not.
    Online {
        id: u8,
        sent: Option<i64>,
        handshake: bool,
        replayed: bool,
    },
    Offline {
        event: bool,
    },
    /// Something that can never be processed.
    Garbled(u8),
    /// What has no effect, by design.
    Ignored,
}

#[derive(Debug, Clone)]
struct Sent {
    client: usize,
    says: Says,
}

/// A sign of life: from whom, after which message it was received, and before which it is delivered.
#[derive(Debug, Clone)]
struct Life {
    client: usize,
    received_after: usize,
    delivered_before: usize,
}

/// How the messages get through: how many at a time, and how many of them are delivered again.
#[derive(Debug, Clone)]
struct Delivery {
    take: usize,
    back: usize,
}

#[derive(Debug, Clone)]
struct Case {
    sent: Vec<Sent>,
    lives: Vec<Life>,
    deliveries: Vec<Delivery>,
}

fn says() -> impl Strategy<Value = Says> {
    let sent = prop_oneof![
        4 => (-20_i64..0).prop_map(Some),
        2 => prop_oneof![Just(-599), Just(-600), Just(-601), Just(-3600)].prop_map(Some),
        1 => prop_oneof![Just(5_i64), Just(100_000)].prop_map(Some),
        1 => Just(None),
    ];
    prop_oneof![
        6 => (0_u8..5, sent, any::<bool>(), prop::bool::weighted(0.2)).prop_map(
            |(id, sent, handshake, replayed)| Says::Online { id, sent, handshake, replayed }
        ),
        3 => any::<bool>().prop_map(|event| Says::Offline { event }),
        1 => (0_u8..4).prop_map(Says::Garbled),
        1 => Just(Says::Ignored),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let sent = prop::collection::vec(
        (0..CLIENTS, says()).prop_map(|(client, says)| Sent { client, says }),
        1..30,
    );
    sent.prop_flat_map(|sent| {
        let count = sent.len();
        let life = (0..CLIENTS, 0..=count, 0..=count).prop_map(
            |(client, received_after, delivered_before)| Life {
                client,
                received_after,
                delivered_before,
            },
        );
        let delivery = (1..8_usize, 0..6_usize).prop_map(|(take, back)| Delivery { take, back });
        (
            Just(sent),
            prop::collection::vec(life, 0..4),
            prop::collection::vec(delivery, 1..40),
        )
            .prop_map(|(sent, lives, deliveries)| Case {
                sent,
                lives,
                deliveries,
            })
    })
}

// --- the model -----------------------------------------------------------------------------------

/// A client as the model sees it.
#[derive(Debug, Clone, Default, PartialEq)]
struct Modelled {
    /// The online that it is or was connected by: id, the sender's clock, its mark.
    word: Option<(u8, i64, usize)>,
    offline_received_at: Option<i64>,
    last_heartbeat_at: Option<i64>,
}

impl Modelled {
    fn shows(&self) -> Option<usize> {
        let (_, _, mark) = self.word?;
        match self.offline_received_at {
            Some(left) if self.last_heartbeat_at <= Some(left) => None,
            _ => Some(mark),
        }
    }
}

/// When the broker had message `n`; signs of life fall between messages.
fn received(n: usize) -> i64 {
    1000 + i64::try_from(n).unwrap() * 10
}

/// Each message once, in order.
fn model(case: &Case) -> Vec<Modelled> {
    let mut clients: Vec<Modelled> = (0..CLIENTS)
        .map(|client| Modelled {
            word: Some((9, received(0) - 10, client)),
            ..Modelled::default()
        })
        .collect();
    for (n, message) in case.sent.iter().enumerate() {
        let client = &mut clients[message.client];
        let now = received(n);
        match message.says {
            Says::Offline { .. } => client.offline_received_at = Some(now),
            Says::Online {
                id,
                sent,
                handshake,
                replayed,
            } => {
                let id = id_of(id, handshake);
                let sent = sent.map_or(now, |back| (now + back).min(now));
                let (known, before, _) = client.word.unwrap();
                let same = id != 0 && id == known;
                let registers = match client.offline_received_at {
                    Some(_) => !(replayed && same),
                    None => !same && !(1..=STALE_ONLINE_WINDOW).contains(&(before - sent)),
                };
                if registers {
                    client.word = Some((id, sent, CLIENTS + n));
                    client.offline_received_at = None;
                }
            }
            Says::Garbled(_) | Says::Ignored => {}
        }
    }
    for life in &case.lives {
        let at = received(life.received_after) - 5;
        let client = &mut clients[life.client];
        client.last_heartbeat_at = client.last_heartbeat_at.max(Some(at));
    }
    clients
}

/// A handshake needs an id.
fn id_of(id: u8, handshake: bool) -> u8 {
    if handshake && id == 0 { 5 } else { id }
}

// --- the real thing ------------------------------------------------------------------------------

struct SingleTenant;

#[async_trait]
impl TenantLookup for SingleTenant {
    async fn lookup(&self, _: &ClientId, _: tokio::time::Instant) -> TenantLookupOutcome {
        TenantLookupOutcome::from_identity(Identity::for_tenant(&Tenant {
            org_id: OrgId::new(ORG).unwrap(),
            account: String::new(),
        }))
    }

    async fn check(&self) -> Result<String, String> {
        Ok(String::new())
    }
}

struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        at(1_000_000)
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

/// One run over a store, with clients of its own.
struct Run {
    topics: TopicScheme,
    recorder: Recorder,
    names: Vec<String>,
    ingress: PartitionLease,
    answers: PartitionLease,
}

impl Run {
    async fn new(store: Arc<dyn Store>, tasks: &TaskGroup) -> Self {
        let parts = RecorderDeps {
            store,
            tenant_lookup: Arc::new(SingleTenant),
            inventory: None,
            mass_loss: MassLossDetector::default(),
            source_registrar: None,
            handshake_errors: HandshakeErrorSender::channel().0,
            clock: Arc::new(FixedClock),
            config: RecorderConfig {
                max_batch_size: 1000,
                tenant_lookup_timeout: Duration::from_secs(5),
                stale_online_window: Duration::from_secs(STALE_ONLINE_WINDOW.unsigned_abs()),
                writers: 1,
                dead_letter_limits: DeadLetterLimits {
                    max_per_client: 20,
                    max_total: 1_000_000,
                },
            },
        };
        let recorder = Recorder::start(parts, tasks);
        let take = async |queue| {
            recorder
                .acquire_partitions(queue, &[0], "me")
                .await
                .unwrap()[0]
        };
        let (ingress, answers) = (
            take(QueueTopic::Ingress).await,
            take(QueueTopic::Answers).await,
        );
        let own = uuid::Uuid::new_v4().simple().to_string();
        Self {
            topics: TopicScheme::new(vec!["p".into()], HandshakeSegments::default()),
            names: (0..CLIENTS).map(|n| format!("{own}-{n}")).collect(),
            recorder,
            ingress,
            answers,
        }
    }

    fn event(
        &self,
        topic: String,
        payload: Bytes,
        second: i64,
        more: (bool, Option<i64>),
    ) -> RecorderInput {
        let (replayed, offset) = more;
        RecorderInput::Message {
            topic: self.topics.parse(&topic).unwrap(),
            message: InboundMessage {
                topic,
                payload,
                retained: replayed,
                operator_replay: false,
                received_at: at(second),
                truncated: None,
            },
            position: offset.map(|offset| QueuePosition {
                partition: 0,
                offset,
            }),
            unordered: offset.is_none(),
        }
    }

    fn online(&self, client: usize, mark: usize, id: &str, sent: &str) -> Bytes {
        let message = json!({"type": "connection-status", "message_id": id, "sent": sent, "content":
            {"state": "online", "canonical_facts": {"mark": mark, "of": self.names[client]}}});
        Bytes::from(message.to_string())
    }

    /// Message `n` of the case, as the queue has it.
    fn message(&self, case: &Case, n: usize) -> RecorderInput {
        let Sent { client, says } = &case.sent[n];
        let name = &self.names[*client];
        let control = format!("p/{name}/control/out");
        let handshakes = format!("p/in/{name}");
        let offset = Some(i64::try_from(n).unwrap() + 1);
        let mut is_replay = false;
        let (topic, payload) = match says {
            Says::Online {
                id,
                sent,
                handshake,
                replayed,
            } => {
                is_replay = *replayed;
                let id = match id_of(*id, *handshake) {
                    0 => String::new(),
                    id => format!("id-{id}"),
                };
                let sent = match sent {
                    Some(back) => at(received(n) + back).to_string(),
                    None => "yesterday".to_owned(),
                };
                let mark = CLIENTS + n;
                if *handshake {
                    let facts = json!({"mark": mark, "of": name});
                    let message = json!({"type": "host-handshake", "message_id": id, "sent": sent,
                        "payload": {"canonical_facts": facts}});
                    (handshakes, Bytes::from(message.to_string()))
                } else {
                    (control, self.online(*client, mark, &id, &sent))
                }
            }
            Says::Offline { event: false } => {
                (handshakes, Bytes::from_static(br#"{"type":"offline"}"#))
            }
            Says::Offline { event: true } => {
                let bytes = br#"{"type":"event","content":"disconnect"}"#;
                (control, Bytes::from_static(bytes))
            }
            Says::Garbled(kind) => {
                let bytes: &'static [u8] = match kind {
                    0 => b"\xff\xfe",
                    1 => b"[1]",
                    2 => br#"{"type":"connection-status","content":{"state":"asleep"}}"#,
                    _ => br#"{"type":"host-handshake","payload":{"canonical_facts":{}}}"#,
                };
                let topic = if *kind == 2 { control } else { handshakes };
                (topic, Bytes::from_static(bytes))
            }
            Says::Ignored => (control, Bytes::from_static(br#"{"type":"news"}"#)),
        };
        self.event(topic, payload, received(n), (is_replay, offset))
    }

    async fn deliver(&self, events: Vec<RecorderInput>) {
        let receipt = self.recorder.submit_partition(self.ingress, events);
        receipt.durable().await.unwrap();
    }

    async fn live(&self, case: &Case, before: usize) {
        for life in case.lives.iter().filter(|l| l.delivered_before == before) {
            let topic = format!("p/{}/data/out", self.names[life.client]);
            let second = received(life.received_after) - 5;
            let event = self.event(topic, Bytes::new(), second, (false, None));
            let receipt = self.recorder.submit_partition(self.answers, vec![event]);
            receipt.durable().await.unwrap();
        }
    }

    /// Everything gets through in the end, however often some of it comes again.
    async fn play(&self, case: &Case) {
        let everybody = (0..CLIENTS).map(|client| {
            let topic = format!("p/{}/control/out", self.names[client]);
            let sent = at(received(0) - 10).to_string();
            let payload = self.online(client, client, "id-9", &sent);
            self.event(topic, payload, received(0) - 10, (false, Some(0)))
        });
        self.deliver(everybody.collect()).await;
        let mut deliveries = case.deliveries.iter().cycle();
        let (mut next, mut furthest) = (0, 0);
        self.live(case, 0).await;
        while next < case.sent.len() {
            let Delivery { take, back } = deliveries.next().unwrap().clone();
            let end = (next + take).min(case.sent.len());
            let events = (next..end).map(|n| self.message(case, n)).collect();
            self.deliver(events).await;
            for before in furthest + 1..=end {
                self.live(case, before).await;
            }
            // A crash: the last ones were written, and are delivered again. Each time less far back,
            // or it would never end.
            let back = if end > furthest { back } else { 0 };
            furthest = furthest.max(end);
            next = end.saturating_sub(back);
        }
    }

    async fn check(&self, store: &dyn Store, case: &Case) -> Result<(), TestCaseError> {
        let org = OrgId::new(ORG).unwrap();
        for (client, expected) in model(case).iter().enumerate() {
            let id = ClientId::new(&self.names[client]).unwrap();
            let found = store.find_for_org(&org, &id).await.unwrap();
            let shown = found.as_ref().map(|row| &row.info.canonical_facts);
            let facts = expected
                .shows()
                .map(|mark| json!({"mark": mark, "of": self.names[client]}));
            prop_assert_eq!(shown, facts.as_ref(), "client {} {:?}", client, expected);
            // What is known of it decides what comes next, so that must be right, too.
            let known = store.load_states(std::slice::from_ref(&id)).await.unwrap();
            let known = &known[&id];
            let left = known
                .connection
                .as_ref()
                .is_none_or(|row| row.offline_overruled);
            prop_assert_eq!(
                left,
                expected.offline_received_at.is_some(),
                "client {}",
                client
            );
        }
        self.check_letters(store, case).await
    }

    /// Every garbled message is kept, once per client and content.
    async fn check_letters(&self, store: &dyn Store, case: &Case) -> Result<(), TestCaseError> {
        let mut expected: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        for sent in &case.sent {
            if let Says::Garbled(kind) = sent.says {
                let kinds = expected.entry(sent.client).or_default();
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            }
        }
        for (client, name) in self.names.iter().enumerate() {
            let filter = DeadLetterFilter {
                client: ClientId::new(name).ok(),
                ..DeadLetterFilter::default()
            };
            let kept = store.list_dead_letters(&filter, 100).await.unwrap();
            let kinds = expected.get(&client).map_or(0, Vec::len);
            prop_assert_eq!(kept.len(), kinds, "dead letters of client {}", client);
        }
        Ok(())
    }
}

async fn holds(store: Arc<dyn Store>, case: &Case) -> Result<(), TestCaseError> {
    let tasks = TaskGroup::new();
    let run = Run::new(store.clone(), &tasks).await;
    run.play(case).await;
    let verdict = run.check(&*store, case).await;
    tasks.stop(Duration::from_secs(5)).await;
    verdict
}

/// Runs cases from a seed that is printed with a failure, and can be given: `PROPTEST_SEED`. More of
/// them with `PROPTEST_CASES`.
fn run(store: impl Fn() -> Arc<dyn Store>, runtime: &tokio::runtime::Runtime) {
    let seed: [u8; 32] = match std::env::var("PROPTEST_SEED") {
        Ok(text) => serde_json::from_str(&text).expect("a seed is an array of 32 numbers"),
        Err(_) => [
            uuid::Uuid::new_v4().into_bytes(),
            uuid::Uuid::new_v4().into_bytes(),
        ]
        .concat()
        .try_into()
        .unwrap(),
    };
    let cases = std::env::var("PROPTEST_CASES").map_or(150, |cases| cases.parse().unwrap());
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let outcome = runner.run(&case(), |case| runtime.block_on(holds(store(), &case)));
    if let Err(error) = outcome {
        panic!(
            "PROPTEST_SEED='{}' repeats it\n{error}",
            Value::from(seed.to_vec())
        );
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn any_sequence_ends_as_the_model_says_on_sqlite() {
    let runtime = runtime();
    let subject = runtime.block_on(crate::store_contract::open_sqlite());
    run(|| subject.store.clone(), &runtime);
}

#[cfg(feature = "external-services")]
#[test]
fn any_sequence_ends_as_the_model_says_on_postgres() {
    let runtime = runtime();
    let subject = runtime.block_on(crate::store_contract::open_postgres());
    run(|| subject.store.clone(), &runtime);
}
