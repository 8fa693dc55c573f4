//! The plan of a schedule: the clients and their actions, the processes, and the faults. The plan
//! depends only on the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use fastrand::Rng;

use crate::gateway::{GatewayOutage, TenantTruth};
use crate::messages::MessageFactory;
use crate::store_faults::OutageKind;

/// One action of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Sends an online message.
    Online(OnlineKind),
    /// Sends several online messages at once.
    Burst(u64),
    /// Sends the latest online message again, byte for byte.
    Resend,
    Offline,
    /// Loses its connection: the broker publishes the last will.
    DropConnection,
    /// Loses its connection, reconnects after a while and sends only a heartbeat.
    DropAndHeartbeat {
        reconnect_millis: u64,
    },
    Heartbeat,
    Response,
    Invalid {
        kind: u64,
        variant: u64,
    },
}

/// What is special about an online message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnlineKind {
    Plain,
    WithoutMessageId,
    WithoutSent,
    /// `sent` is this number of seconds before the current time of the client.
    SentEarlier(u64),
    /// `sent` is this number of seconds after the current time of the client.
    SentLater(u64),
}

#[derive(Debug, Clone, Copy)]
pub struct Step {
    pub delay: Duration,
    pub action: Action,
}

/// A client and its actions.
#[derive(Debug, Clone)]
pub struct ClientPlan {
    pub factory: MessageFactory,
    pub tenant: TenantTruth,
    pub steps: Vec<Step>,
}

/// A process of the distributed deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Ingest,
    Record,
    Updaters,
}

/// A fault of the schedule.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    Crash(Target, usize),
    Restart(Target, usize),
    Pause(Target, usize, Duration),
    /// Partitions are reassigned although no process failed. True selects the ingress topic.
    Rebalance {
        is_ingress: bool,
    },
    /// The broker closes the connection of `ingest`.
    CloseIngestConnection,
    /// An `ingest` process first cannot reach Kafka, then also not the broker. Its messages reach
    /// Kafka later.
    IsolateIngest {
        process: usize,
        kafka_only: Duration,
        all: Duration,
    },
    StallKafka(Duration),
    DatabaseOutage(OutageKind, Duration),
    /// Calls to the database fail with this probability, in percent.
    DatabaseErrors {
        percent: u64,
        duration: Duration,
    },
    GatewayOutage(GatewayOutage, Duration),
}

/// The plan of a schedule.
#[expect(
    clippy::struct_excessive_bools,
    reason = "the flags are independent properties of a schedule"
)]
#[derive(Debug, Clone)]
pub struct Plan {
    /// Whether the schedule simulates the embedded deployment instead of the distributed one.
    pub is_embedded: bool,
    pub clients: Vec<ClientPlan>,
    /// Clients whose rows the database rejects until the faults end.
    pub rejected_clients: BTreeSet<String>,
    pub faults: Vec<(Duration, Fault)>,
    /// Duration of the part with faults.
    pub fault_duration: Duration,
    pub ingest_processes: usize,
    pub record_processes: usize,
    pub updater_processes: usize,
    pub ingress_partitions: usize,
    pub answers_partitions: usize,
    pub max_batch_size: usize,
    pub writers: usize,
    pub caches_tenants: bool,
    pub crash_percent: u64,
    pub pause_percent: u64,
    pub max_points_before_fault: u64,
    /// Clock differences of the `ingest` processes, in seconds.
    pub ingest_clock_skews: [i64; 2],
    /// Clock differences of the other processes, in seconds.
    pub clock_skews: Vec<i64>,
    /// Whether `ingest` forwards messages without a stamp if it gets no epoch. Receive times then
    /// decide the order.
    pub allows_messages_without_stamp: bool,
    /// Whether an `ingest` process can write messages to Kafka after another process has taken over.
    pub has_late_ingest: bool,
    /// Whether the schedule also checks that expired rows are deleted.
    pub checks_retention: bool,
    pub job_interval: Duration,
}

impl Plan {
    /// Creates the plan of a seed.
    pub fn new(seed: u64) -> Self {
        // Another stream than the random numbers of the run.
        let mut random = Rng::with_seed(seed ^ 0x5eed_0f91_a205_17e3);
        let random = &mut random;
        let fault_duration = millis(random, 20_000..=90_000);
        let client_count = random.usize(4..=24);
        let mut clients: Vec<ClientPlan> = (0..client_count)
            .map(|number| client_plan(random, number, fault_duration))
            .collect();
        let is_embedded = chance(random, 25);
        if is_embedded {
            for step in clients.iter_mut().flat_map(|client| &mut client.steps) {
                step.action = action_for_embedded_deployment(step.action);
            }
        }
        let rejected_count = if chance(random, 30) {
            random.usize(1..=2)
        } else {
            0
        };
        let mut rejected_clients = BTreeSet::new();
        for client in clients.iter_mut().take(rejected_count) {
            // Only one message, because it depends on the batches which of several online messages
            // becomes a dead letter.
            client.factory.uses_handshake = false;
            client.steps = vec![Step {
                delay: millis(random, 0..=10_000),
                action: Action::Online(OnlineKind::Plain),
            }];
            rejected_clients.insert(client.factory.client_id.clone());
        }
        // Stamps, equal clocks, or the order in Kafka must determine the order of the messages.
        let allows_messages_without_stamp = chance(random, 15);
        let has_late_ingest = !allows_messages_without_stamp && chance(random, 60);
        let has_skewed_ingest_clocks =
            !allows_messages_without_stamp && !has_late_ingest && chance(random, 60);
        let has_skewed_clocks = chance(random, 40);
        let mut skew = |is_skewed: bool| if is_skewed { random.i64(-30..=30) } else { 0 };
        let ingest_clock_skews = [(); 2].map(|()| skew(has_skewed_ingest_clocks));
        let clock_skews = (0..8).map(|_| skew(has_skewed_clocks)).collect();
        let mut plan = Self {
            is_embedded,
            clients,
            rejected_clients,
            faults: Vec::new(),
            fault_duration,
            ingest_processes: random.usize(1..=2),
            record_processes: random.usize(1..=3),
            updater_processes: random.usize(1..=2),
            ingress_partitions: random.usize(1..=4),
            answers_partitions: random.usize(1..=3),
            max_batch_size: random.choice([2, 5, 1000]).unwrap_or(1000),
            writers: random.usize(1..=2),
            caches_tenants: random.bool(),
            crash_percent: random.choice([0, 30, 80]).unwrap_or(0),
            pause_percent: random.choice([0, 20, 60]).unwrap_or(0),
            max_points_before_fault: random.choice([20, 100, 400]).unwrap_or(100),
            ingest_clock_skews,
            clock_skews,
            allows_messages_without_stamp,
            has_late_ingest,
            checks_retention: chance(random, 10),
            job_interval: Duration::from_secs(random.u64(10..=30)),
        };
        plan.faults = faults(random, &plan);
        plan
    }

    /// Returns the clients that the gateway finds at any time.
    pub fn clients_with_tenant(&self) -> BTreeSet<String> {
        let clients = self.clients.iter();
        let with_tenant = clients.filter(|client| matches!(client.tenant, TenantTruth::Org(_)));
        with_tenant
            .map(|client| client.factory.client_id.clone())
            .collect()
    }

    /// Returns the tenant of each client.
    pub fn tenants(&self) -> BTreeMap<String, TenantTruth> {
        let tenants = self.clients.iter();
        tenants
            .map(|client| (client.factory.client_id.clone(), client.tenant))
            .collect()
    }
}

fn chance(random: &mut Rng, percent: u64) -> bool {
    random.u64(1..=100) <= percent
}

fn millis(random: &mut Rng, range: RangeInclusive<u64>) -> Duration {
    Duration::from_millis(random.u64(range))
}

fn client_plan(random: &mut Rng, number: usize, fault_duration: Duration) -> ClientPlan {
    let uses_handshake = chance(random, 20);
    let org = random.u64(1..=3);
    let tenant = match random.u64(1..=100) {
        1..=15 => TenantTruth::None,
        16..=25 => TenantTruth::OrgAfter(org, millis(random, 0..=60_000)),
        _ => TenantTruth::Org(org),
    };
    let step_count = random.usize(2..=14);
    let max_delay = u64::try_from(fault_duration.as_millis()).unwrap_or(0) * 2 / step_count as u64;
    let mut steps = vec![Step {
        delay: millis(random, 0..=5000),
        action: Action::Online(OnlineKind::Plain),
    }];
    for _ in 1..step_count {
        let delay = if chance(random, 50) {
            millis(random, 0..=200)
        } else {
            millis(random, 0..=max_delay)
        };
        let action = action(random, uses_handshake);
        steps.push(Step { delay, action });
    }
    ClientPlan {
        factory: MessageFactory {
            client_id: format!("client-{number:02}"),
            uses_handshake,
        },
        tenant,
        steps,
    }
}

fn action(random: &mut Rng, uses_handshake: bool) -> Action {
    match random.u64(1..=100) {
        1..=8 => Action::Burst(random.u64(2..=4)),
        9..=14 => Action::Resend,
        15..=27 => Action::Offline,
        28..=36 => Action::DropConnection,
        37..=46 if !uses_handshake => Action::DropAndHeartbeat {
            reconnect_millis: random.u64(0..=3000),
        },
        47..=52 if !uses_handshake => Action::Heartbeat,
        53..=58 => Action::Response,
        59..=64 => Action::Invalid {
            kind: random.u64(0..=3),
            variant: random.u64(0..=1),
        },
        65..=69 if !uses_handshake => Action::Online(OnlineKind::WithoutMessageId),
        70..=72 => Action::Online(OnlineKind::WithoutSent),
        73..=78 => Action::Online(OnlineKind::SentEarlier(random.u64(1..=1500))),
        79..=81 => Action::Online(OnlineKind::SentLater(random.u64(1..=1500))),
        _ => Action::Online(OnlineKind::Plain),
    }
}

/// Returns an action whose effect does not depend on the send time. After a lost connection, the broker
/// may or may not have received the last message and the last will, and both decide whether an
/// earlier send time makes the repeated message stale.
fn action_for_embedded_deployment(action: Action) -> Action {
    match action {
        Action::Online(
            OnlineKind::SentEarlier(_) | OnlineKind::SentLater(_) | OnlineKind::WithoutSent,
        ) => Action::Online(OnlineKind::Plain),
        action => action,
    }
}

fn faults(random: &mut Rng, plan: &Plan) -> Vec<(Duration, Fault)> {
    let fault_millis = u64::try_from(plan.fault_duration.as_millis()).unwrap_or(0);
    let count = random.usize(0..=10);
    let mut faults: Vec<(Duration, Fault)> = (0..count)
        .map(|_| (millis(random, 0..=fault_millis), fault(random, plan)))
        .collect();
    faults.sort_by_key(|(time, _)| *time);
    faults
}

fn fault(random: &mut Rng, plan: &Plan) -> Fault {
    let (target, processes) = match random.u64(1..=100) {
        1..=60 => (Target::Record, plan.record_processes),
        61..=80 => (Target::Ingest, plan.ingest_processes),
        _ => (Target::Updaters, plan.updater_processes),
    };
    let process = random.usize(0..processes);
    match random.u64(1..=100) {
        1..=16 => Fault::Crash(target, process),
        17..=26 => Fault::Restart(target, process),
        27..=46 if !plan.has_late_ingest && target == Target::Ingest => {
            Fault::CloseIngestConnection
        }
        27..=46 => Fault::Pause(target, process, millis(random, 500..=20_000)),
        47..=58 => Fault::Rebalance {
            is_ingress: chance(random, 70),
        },
        59..=62 => Fault::CloseIngestConnection,
        63..=66 if plan.has_late_ingest => Fault::IsolateIngest {
            process: random.usize(0..plan.ingest_processes),
            kafka_only: millis(random, 100..=5000),
            all: millis(random, 1000..=20_000),
        },
        63..=69 => Fault::StallKafka(millis(random, 500..=10_000)),
        70..=78 => {
            let kind = if random.bool() {
                OutageKind::Refuses
            } else {
                OutageKind::Hangs
            };
            Fault::DatabaseOutage(kind, millis(random, 500..=30_000))
        }
        79..=87 => Fault::DatabaseErrors {
            percent: random.u64(5..=60),
            duration: millis(random, 1000..=20_000),
        },
        _ => {
            let outages = [
                GatewayOutage::Fails,
                GatewayOutage::Hangs,
                GatewayOutage::Flaky,
            ];
            let outage = *random.choice(&outages).unwrap_or(&GatewayOutage::Fails);
            Fault::GatewayOutage(outage, millis(random, 1000..=240_000))
        }
    }
}
