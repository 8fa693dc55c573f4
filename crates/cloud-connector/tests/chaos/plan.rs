//! The plan of a run: the actions of every client, and the schedule of faults. The plan depends
//! only on the seed.
//!
//! Each fault occurs after a planned number of acknowledged messages, not at a planned time.
//! Therefore slow and fast machines run the same plan.

use std::time::Duration;

use crate::random::Random;

pub const CLIENT_COUNT: usize = 2000;
const MESSAGES_PER_CLIENT_AND_ROUND: u64 = 10;

/// Roles of the connector processes in distributed mode. A fault identifies a process by its index
/// in this array.
pub const ROLES: [&str; 5] = ["ingest", "record", "record", "api", "updaters"];
// Indexes of the processes in `ROLES`.
const INGEST_PROCESS_INDEX: usize = 0;
const RECORD_PROCESS_INDEXES: [usize; 2] = [1, 2];
const API_PROCESS_INDEX: usize = 3;
const UPDATERS_PROCESS_INDEX: usize = 4;
/// Index of the only process in embedded mode.
const EMBEDDED_PROCESS_INDEX: usize = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeploymentMode {
    Embedded,
    Distributed,
}

impl DeploymentMode {
    pub fn as_str(self) -> &'static str {
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
    /// Whether the client uses the handshake dialect instead of the status dialect.
    pub uses_handshake: bool,
    /// Whether the client sends only a heartbeat after a reconnect, and no online message.
    pub reconnects_with_heartbeat_only: bool,
    pub clock: ClockKind,
    pub tenant: TenantKind,
}

/// How the clock of a client deviates from the real time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockKind {
    Correct,
    /// The clock is always one hour fast.
    Fast,
    /// The clock is sometimes set back by several hours, and corrected later.
    Adjusted,
}

/// The tenant that the lookup finds for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TenantKind {
    /// The organization that the connector assigns to clients by default.
    Default,
    /// Another organization.
    Other,
    /// The client has no tenant.
    None,
}

impl TenantKind {
    /// Returns the organization id and the account number.
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
    /// Sends an online message, with or without a message id.
    SendOnline { with_message_id: bool },
    /// Sends this many online messages, and waits for the PUBACK packets only after the last
    /// message.
    SendOnlineBurst(u64),
    /// Sends the latest online message again, byte for byte.
    Resend,
    /// Sends an online message whose `sent` time is `seconds` before the `sent` time of the latest
    /// online message.
    SendStaleOnline { seconds: u64 },
    /// Sets the client's clock back by `hours`, then sends an online message. A value of 0 corrects
    /// the clock.
    SetClockBack { hours: u64 },
    /// Sends a message that can never be processed. `dialect::invalid_message` describes
    /// `kind` and `variant`.
    SendInvalid { kind: u64, variant: u64 },
    /// Opens a second connection with the same client id, so the broker closes the first
    /// connection. Then sends an online message.
    Takeover,
    /// Sends an offline message and disconnects.
    GoOffline,
    /// Drops the connection without DISCONNECT, so the broker publishes the last will.
    DropConnection,
}

impl Action {
    /// Returns the number of messages that the action sends.
    pub fn message_count(self) -> u64 {
        match self {
            Self::SendOnlineBurst(count) => count,
            Self::DropConnection => 0,
            _ => 1,
        }
    }
}

/// Number of different values of the field `kind` in [`Action::SendInvalid`].
pub const INVALID_MESSAGE_KIND_COUNT: u64 = 6;

/// An action of a client, and the delay before the action.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    pub delay_before: Duration,
    pub action: Action,
}

/// Returns the random profile of the client with this index.
pub fn client_profile(seed: u64, mode: DeploymentMode, client_index: usize) -> Profile {
    let mut random = Random::new(seed, &[1, client_index as u64]);
    let uses_handshake = random.chance(15);
    // In distributed mode a heartbeat can be lost (see the known limits in docs/ARCHITECTURE.md).
    // Therefore every client sends an online message after a reconnect. In embedded mode no
    // heartbeat is lost, so most clients send only a heartbeat. An online message would create a
    // lost row again, so the check would not detect the loss of the row.
    let reconnects_with_heartbeat_only =
        mode == DeploymentMode::Embedded && !uses_handshake && random.chance(75);
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
        client_id: format!("chaos-{client_index:04}"),
        uses_handshake,
        reconnects_with_heartbeat_only,
        clock,
        tenant,
    }
}

/// Returns the steps of a client in one round. After the last step, the client is connected, has
/// sent an offline message, or has dropped its connection.
pub fn client_steps(seed: u64, round: u64, client_index: usize, profile: &Profile) -> Vec<Step> {
    let mut random = Random::new(seed, &[2, round, client_index as u64]);
    let last_action = match random.between(1, 100) {
        1..=14 => Some(Action::GoOffline),
        15..=28 => Some(Action::DropConnection),
        _ => None,
    };
    let message_budget =
        MESSAGES_PER_CLIENT_AND_ROUND - last_action.map_or(0, Action::message_count);
    let mut actions = Vec::new();
    let mut planned_messages = 0;
    // A client that is not connected must send an online message first.
    let mut is_connected = false;
    while planned_messages < message_budget {
        let action = if is_connected {
            action_of_connected_client(&mut random, profile, message_budget - planned_messages)
        } else {
            send_online_action(&mut random, profile)
        };
        is_connected = !matches!(action, Action::GoOffline | Action::DropConnection);
        planned_messages += action.message_count();
        actions.push(action);
    }
    if last_action.is_none() && !is_connected {
        // The last planned action disconnects the client, but the client must be connected at the
        // end of the round. Therefore an online message replaces that action.
        actions.pop();
        actions.push(Action::SendOnline {
            with_message_id: true,
        });
    }
    actions.extend(last_action.filter(|_| is_connected));
    let planned_messages: u64 = actions.iter().map(|action| action.message_count()).sum();
    let missing_messages = MESSAGES_PER_CLIENT_AND_ROUND.saturating_sub(planned_messages);
    let padding_actions = std::iter::repeat_n(
        Action::SendOnline {
            with_message_id: true,
        },
        usize::try_from(missing_messages).unwrap(),
    );
    padding_actions
        .chain(actions)
        .map(|action| Step {
            delay_before: Duration::from_millis(random.between(0, 1000)),
            action,
        })
        .collect()
}

fn send_online_action(random: &mut Random, profile: &Profile) -> Action {
    Action::SendOnline {
        // A handshake requires a message id.
        with_message_id: profile.uses_handshake || !random.chance(5),
    }
}

fn action_of_connected_client(random: &mut Random, profile: &Profile, max_messages: u64) -> Action {
    let has_correct_clock = profile.clock == ClockKind::Correct;
    match random.between(1, 100) {
        1..=10 => Action::SendOnlineBurst(random.between(2, 4).min(max_messages)),
        // If a client has a fast clock, the connector orders the client's messages by receive time.
        // A resent message would then count as a new message.
        11..=18 if profile.clock != ClockKind::Fast => Action::Resend,
        19..=24 if has_correct_clock && !profile.uses_handshake => Action::SendStaleOnline {
            seconds: random.between(1, 500),
        },
        25..=29 => Action::SendInvalid {
            kind: random.between(1, INVALID_MESSAGE_KIND_COUNT),
            variant: random.between(1, 2),
        },
        30..=36 => Action::Takeover,
        37..=43 => Action::GoOffline,
        44..=52 => Action::DropConnection,
        53..=80 if profile.clock == ClockKind::Adjusted => Action::SetClockBack {
            hours: if random.chance(50) { 5 } else { 0 },
        },
        _ => send_online_action(random, profile),
    }
}

/// A fault that the test injects into a process or a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Kills a process with SIGKILL, and starts the process again after the downtime.
    Kill {
        process_index: usize,
        downtime: Duration,
    },
    /// Pauses a process with SIGSTOP, and resumes the process with SIGCONT after the duration.
    Pause {
        process_index: usize,
        duration: Duration,
    },
    /// Stops a process with SIGTERM, and starts the process again.
    Restart { process_index: usize },
    /// Stops or kills a service, and starts the service again after the downtime.
    RestartService {
        service: ServiceKind,
        with_sigkill: bool,
        downtime: Duration,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceKind {
    Mosquitto,
    Kafka,
    Postgres,
}

/// A fault and the time of its injection. When the broker has acknowledged
/// `acknowledged_messages_before` messages, the test waits for `delay` and then injects the fault.
#[derive(Debug, Clone, Copy)]
pub struct ScheduledFault {
    pub acknowledged_messages_before: u64,
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
    // A restart of the broker disconnects all clients, and most clients send an online message
    // again. These messages would hide an earlier loss of messages. Therefore the restart is one of
    // the first four faults.
    faults.sort_by_key(|fault| !is_broker_restart(fault));
    let faults_before_restart = usize::try_from(random.between(0, 3)).unwrap();
    let broker_restarts = faults.iter().filter(|fault| is_broker_restart(fault));
    let broker_restart_count = broker_restarts.count();
    faults[..broker_restart_count + faults_before_restart].rotate_left(broker_restart_count);
    // The last faults of the round kill processes directly after the broker has acknowledged all
    // messages. The kills must not cause a loss of the last messages.
    let last_killed_process_indexes: &[usize] = match mode {
        DeploymentMode::Embedded => &[EMBEDDED_PROCESS_INDEX],
        DeploymentMode::Distributed => &[
            RECORD_PROCESS_INDEXES[0],
            INGEST_PROCESS_INDEX,
            RECORD_PROCESS_INDEXES[1],
        ],
    };
    let messages_per_fault = total_messages / faults.len() as u64;
    let mut schedule: Vec<ScheduledFault> = Vec::new();
    for (n, fault) in faults.into_iter().enumerate() {
        schedule.push(ScheduledFault {
            acknowledged_messages_before: messages_per_fault * n as u64
                + random.between(messages_per_fault / 4, messages_per_fault),
            delay: Duration::from_millis(random.between(0, 300)),
            fault,
        });
    }
    for process_index in last_killed_process_indexes {
        schedule.push(ScheduledFault {
            acknowledged_messages_before: total_messages,
            delay: Duration::from_millis(random.between(0, 100)),
            fault: kill_fault(&mut random, *process_index),
        });
    }
    schedule
}

fn is_broker_restart(fault: &Fault) -> bool {
    let broker = ServiceKind::Mosquitto;
    matches!(fault, Fault::RestartService { service, .. } if *service == broker)
}

fn kill_fault(random: &mut Random, process_index: usize) -> Fault {
    Fault::Kill {
        process_index,
        downtime: Duration::from_millis(random.between(0, 1000)),
    }
}

fn pause_fault(random: &mut Random, process_index: usize, max_millis: u64) -> Fault {
    Fault::Pause {
        process_index,
        duration: Duration::from_millis(random.between(1000, max_millis)),
    }
}

fn embedded_faults(random: &mut Random) -> Vec<Fault> {
    let process_index = EMBEDDED_PROCESS_INDEX;
    let mut faults: Vec<Fault> = (0..7).map(|_| kill_fault(random, process_index)).collect();
    faults.extend((0..2).map(|_| pause_fault(random, process_index, 6000)));
    faults.push(Fault::Restart { process_index });
    faults
}

fn distributed_faults(random: &mut Random) -> Vec<Fault> {
    let mut faults = Vec::new();
    for process_index in [
        INGEST_PROCESS_INDEX,
        INGEST_PROCESS_INDEX,
        RECORD_PROCESS_INDEXES[0],
        RECORD_PROCESS_INDEXES[1],
        API_PROCESS_INDEX,
        UPDATERS_PROCESS_INDEX,
    ] {
        faults.push(kill_fault(random, process_index));
    }
    let last_process_index = ROLES.len() as u64 - 1;
    let random_process_index = usize::try_from(random.between(0, last_process_index)).unwrap();
    faults.push(kill_fault(random, random_process_index));
    // This pause is sometimes longer than the session timeout of the consumer group. Kafka then
    // assigns the partitions to the other `record` process.
    faults.push(pause_fault(random, RECORD_PROCESS_INDEXES[0], 12_000));
    for process_index in [INGEST_PROCESS_INDEX, random_process_index] {
        faults.push(pause_fault(random, process_index, 5000));
    }
    let process_index = usize::try_from(random.between(0, last_process_index)).unwrap();
    faults.push(Fault::Restart { process_index });
    for service in [
        ServiceKind::Mosquitto,
        ServiceKind::Kafka,
        ServiceKind::Postgres,
    ] {
        faults.push(Fault::RestartService {
            service,
            // Mosquitto is never killed. A killed Mosquitto loses all messages since it last saved
            // its state, which is a known limit.
            with_sigkill: service != ServiceKind::Mosquitto && random.chance(50),
            downtime: Duration::from_millis(random.between(0, 2000)),
        });
    }
    faults
}
