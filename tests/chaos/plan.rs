//! The actions of every client and the schedule of faults, derived from the seed alone.
//!
//! Faults are scheduled by the number of acknowledged messages, not by time, so slow and fast
//! machines run the same plan.

use std::time::Duration;

use crate::random::Random;

pub const CLIENTS: usize = 2000;
const MESSAGES_PER_CLIENT_AND_ROUND: u64 = 10;

/// Roles of the processes in distributed mode. Faults name a process by its index here.
pub const ROLES: [&str; 5] = ["ingest", "record", "record", "api", "updaters"];
const INGEST: usize = 0;
const RECORD: [usize; 2] = [1, 2];
const API: usize = 3;
const UPDATERS: usize = 4;
/// Index of the only process in embedded mode.
const EMBEDDED_PROCESS: usize = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeploymentMode {
    Embedded,
    Distributed,
}

impl DeploymentMode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Distributed => "distributed",
        }
    }
}

/// Properties of a client that stay the same for the whole run.
#[derive(Debug, Clone)]
pub struct Profile {
    pub client_id: String,
    /// Uses the handshake dialect instead of the status dialect.
    pub uses_handshake: bool,
    /// Sends only a heartbeat after a reconnect, and no online message.
    pub heartbeat_only: bool,
    pub clock: ClockKind,
    pub tenant: TenantKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockKind {
    Correct,
    /// Always one hour fast.
    Fast,
    /// Sometimes set back by hours, and later corrected.
    Adjusted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TenantKind {
    /// The organization that the connector assigns by default.
    Default,
    /// Another organization.
    Other,
    /// The client has no tenant.
    None,
}

impl TenantKind {
    /// Returns the organization ID and the account number.
    pub fn org_and_account(self) -> (&'static str, &'static str) {
        match self {
            Self::Default => ("10000", "111000"),
            Self::Other => ("10001", "010101"),
            Self::None => ("", ""),
        }
    }
}

/// One action of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Sends an online message, with or without a message ID.
    SendOnline { with_id: bool },
    /// Sends this many online messages without waiting for acknowledgements in between.
    SendOnlineBurst(u64),
    /// Sends the latest online message again, byte for byte.
    Resend,
    /// Sends an online message whose `sent` time is before that of the latest one.
    SendStaleOnline { seconds: u64 },
    /// Sets the clock back by this many hours (0 corrects it), then sends an online message.
    SetClockBack { hours: u64 },
    /// Sends a message that can never be processed.
    SendInvalid { kind: u64, variant: u64 },
    /// Opens a second connection, which takes over from the first, and sends an online message.
    Takeover,
    /// Sends an offline message and disconnects.
    GoOffline,
    /// Drops the connection without DISCONNECT, so the broker publishes the last will.
    DropConnection,
}

impl Action {
    pub fn message_count(self) -> u64 {
        match self {
            Self::SendOnlineBurst(count) => count,
            Self::DropConnection => 0,
            _ => 1,
        }
    }
}

/// Number of kinds of [`Action::SendInvalid`].
pub const INVALID_KINDS: u64 = 6;

/// An action and the delay before it.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    pub delay: Duration,
    pub action: Action,
}

pub fn profile(seed: u64, mode: DeploymentMode, client: usize) -> Profile {
    let mut random = Random::new(seed, &[1, client as u64]);
    let uses_handshake = random.chance(15);
    // In distributed mode a heartbeat can be lost (see the known limits in docs/ARCHITECTURE.md).
    // In embedded mode it cannot. There, clients that send no online message after a reconnect make
    // sure that a lost row is noticed instead of being created again.
    let heartbeat_only = mode == DeploymentMode::Embedded && !uses_handshake && random.chance(75);
    let clock = match random.between(1, 100) {
        1..=5 => ClockKind::Fast,
        6..=15 => ClockKind::Adjusted,
        _ => ClockKind::Correct,
    };
    let tenant = match random.between(1, 100) {
        1..=6 => TenantKind::None,
        7..=20 => TenantKind::Other,
        _ => TenantKind::Default,
    };
    Profile {
        client_id: format!("chaos-{client:04}"),
        uses_handshake,
        heartbeat_only,
        clock,
        tenant,
    }
}

/// Returns the actions of a client in one round. At the end the client is connected, offline, or
/// has dropped its connection.
pub fn steps(seed: u64, round: u64, client: usize, profile: &Profile) -> Vec<Step> {
    let mut random = Random::new(seed, &[2, round, client as u64]);
    let last_action = match random.between(1, 100) {
        1..=14 => Some(Action::GoOffline),
        15..=28 => Some(Action::DropConnection),
        _ => None,
    };
    let budget = MESSAGES_PER_CLIENT_AND_ROUND - last_action.map_or(0, Action::message_count);
    let mut actions = Vec::new();
    let mut planned = 0;
    // A client that is not connected must send an online message first.
    let mut is_connected = false;
    while planned < budget {
        let action = if is_connected {
            connected_action(&mut random, profile, budget - planned)
        } else {
            send_online(&mut random, profile)
        };
        is_connected = !matches!(action, Action::GoOffline | Action::DropConnection);
        planned += action.message_count();
        actions.push(action);
    }
    if last_action.is_none() && !is_connected {
        // The client should end connected, so an online message replaces its disconnect.
        actions.pop();
        actions.push(Action::SendOnline { with_id: true });
    }
    actions.extend(last_action.filter(|_| is_connected));
    let planned: u64 = actions.iter().map(|action| action.message_count()).sum();
    let missing = MESSAGES_PER_CLIENT_AND_ROUND.saturating_sub(planned);
    let padding = std::iter::repeat_n(
        Action::SendOnline { with_id: true },
        usize::try_from(missing).unwrap(),
    );
    padding
        .chain(actions)
        .map(|action| Step {
            delay: Duration::from_millis(random.between(0, 1000)),
            action,
        })
        .collect()
}

fn send_online(random: &mut Random, profile: &Profile) -> Action {
    Action::SendOnline {
        // A handshake requires a message ID.
        with_id: profile.uses_handshake || !random.chance(5),
    }
}

fn connected_action(random: &mut Random, profile: &Profile, max_messages: u64) -> Action {
    let is_correct = profile.clock == ClockKind::Correct;
    match random.between(1, 100) {
        1..=10 => Action::SendOnlineBurst(random.between(2, 4).min(max_messages)),
        // For a client with a fast clock, the connector orders messages by their time of receipt. A
        // resent message would count as a new one.
        11..=18 if profile.clock != ClockKind::Fast => Action::Resend,
        19..=24 if is_correct && !profile.uses_handshake => Action::SendStaleOnline {
            seconds: random.between(1, 500),
        },
        25..=29 => Action::SendInvalid {
            kind: random.between(1, INVALID_KINDS),
            variant: random.between(1, 2),
        },
        30..=36 => Action::Takeover,
        37..=43 => Action::GoOffline,
        44..=52 => Action::DropConnection,
        53..=80 if profile.clock == ClockKind::Adjusted => Action::SetClockBack {
            hours: if random.chance(50) { 5 } else { 0 },
        },
        _ => send_online(random, profile),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL, and a start after the downtime.
    Kill { process: usize, downtime: Duration },
    /// SIGSTOP, and SIGCONT after the duration.
    Pause { process: usize, duration: Duration },
    /// SIGTERM, and a start.
    Restart { process: usize },
    /// Stops or kills a service, and starts it after the downtime.
    RestartService {
        service: ServiceKind,
        kill: bool,
        downtime: Duration,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceKind {
    Mosquitto,
    Kafka,
    Postgres,
}

/// A fault and its time: a delay after this many messages are acknowledged.
#[derive(Debug, Clone, Copy)]
pub struct ScheduledFault {
    pub after_messages: u64,
    pub delay: Duration,
    pub fault: Fault,
}

/// Returns the faults of one round. `total_messages` is the number of messages that all clients
/// send in the round.
pub fn fault_schedule(
    seed: u64,
    round: u64,
    mode: DeploymentMode,
    total_messages: u64,
) -> Vec<ScheduledFault> {
    let mut random = Random::new(seed, &[3, round]);
    let mut faults = match mode {
        DeploymentMode::Embedded => embedded_faults(&mut random),
        DeploymentMode::Distributed => distributed_faults(&mut random),
    };
    random.shuffle(&mut faults);
    // A restart of the broker disconnects all clients, and most send an online message again. That
    // hides earlier losses, so the restart is among the first four faults.
    faults.sort_by_key(|fault| !is_broker_restart(fault));
    let faults_before = usize::try_from(random.between(0, 3)).unwrap();
    let broker_restarts = faults.iter().filter(|fault| is_broker_restart(fault));
    let broker_restarts = broker_restarts.count();
    faults[..broker_restarts + faults_before].rotate_left(broker_restarts);
    // The round ends with kills, right after the last messages of many clients were acknowledged.
    let last_kills: &[usize] = match mode {
        DeploymentMode::Embedded => &[EMBEDDED_PROCESS],
        DeploymentMode::Distributed => &[RECORD[0], INGEST, RECORD[1]],
    };
    let spacing = total_messages / faults.len() as u64;
    let mut schedule: Vec<ScheduledFault> = Vec::new();
    for (n, fault) in faults.into_iter().enumerate() {
        schedule.push(ScheduledFault {
            after_messages: spacing * n as u64 + random.between(spacing / 4, spacing),
            delay: Duration::from_millis(random.between(0, 300)),
            fault,
        });
    }
    for process in last_kills {
        schedule.push(ScheduledFault {
            after_messages: total_messages,
            delay: Duration::from_millis(random.between(0, 100)),
            fault: kill(&mut random, *process),
        });
    }
    schedule
}

fn is_broker_restart(fault: &Fault) -> bool {
    let broker = ServiceKind::Mosquitto;
    matches!(fault, Fault::RestartService { service, .. } if *service == broker)
}

fn kill(random: &mut Random, process: usize) -> Fault {
    Fault::Kill {
        process,
        downtime: Duration::from_millis(random.between(0, 1000)),
    }
}

fn pause(random: &mut Random, process: usize, max_millis: u64) -> Fault {
    Fault::Pause {
        process,
        duration: Duration::from_millis(random.between(1000, max_millis)),
    }
}

fn embedded_faults(random: &mut Random) -> Vec<Fault> {
    let process = EMBEDDED_PROCESS;
    let mut faults: Vec<Fault> = (0..7).map(|_| kill(random, process)).collect();
    faults.extend((0..2).map(|_| pause(random, process, 6000)));
    faults.push(Fault::Restart { process });
    faults
}

fn distributed_faults(random: &mut Random) -> Vec<Fault> {
    let mut faults = Vec::new();
    for process in [INGEST, INGEST, RECORD[0], RECORD[1], API, UPDATERS] {
        faults.push(kill(random, process));
    }
    let last_process = ROLES.len() as u64 - 1;
    let any = usize::try_from(random.between(0, last_process)).unwrap();
    faults.push(kill(random, any));
    // Sometimes longer than the session timeout of the consumer group. The other `record` process
    // is then assigned the partitions.
    faults.push(pause(random, RECORD[0], 12_000));
    for process in [INGEST, any] {
        faults.push(pause(random, process, 5000));
    }
    let process = usize::try_from(random.between(0, last_process)).unwrap();
    faults.push(Fault::Restart { process });
    for service in [
        ServiceKind::Mosquitto,
        ServiceKind::Kafka,
        ServiceKind::Postgres,
    ] {
        faults.push(Fault::RestartService {
            service,
            // Mosquitto is never killed: it would lose messages since its last save, which is a
            // known limit.
            kill: service != ServiceKind::Mosquitto && random.chance(50),
            downtime: Duration::from_millis(random.between(0, 2000)),
        });
    }
    faults
}
