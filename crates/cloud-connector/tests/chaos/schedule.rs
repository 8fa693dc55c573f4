//! The schedule of faults. The schedule depends only on the seed.
//!
//! Each fault occurs after a planned number of acknowledged messages, not at a planned time.
//! Therefore slow and fast machines run the same plan.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::faults::{Fault, FaultKind, ServiceKind};
use crate::plan::{DeploymentMode, ROLES};
use crate::random::Random;

// Indexes of the processes in `ROLES`.
const INGEST_PROCESS_INDEX: usize = 0;
const RECORD_PROCESS_INDEXES: [usize; 2] = [1, 2];
const API_PROCESS_INDEX: usize = 3;
const UPDATERS_PROCESS_INDEX: usize = 4;
/// Index of the only process in embedded mode.
const EMBEDDED_PROCESS_INDEX: usize = 0;

/// Maximum difference between the clock of a process and the machine's clock.
pub const MAX_CLOCK_SKEW_SECONDS: i64 = 30;

/// A fault and the time of its injection. When the broker has acknowledged
/// `acknowledged_messages_before` messages, the test waits for `delay` and then injects the fault.
#[derive(Debug, Clone, Copy)]
pub struct ScheduledFault {
    pub acknowledged_messages_before: u64,
    pub delay: Duration,
    pub fault: Fault,
}

/// Returns the faults of one round. `total_messages` is the number of messages that all clients
/// send in the round. Omits the kinds of faults that are not in `enabled_kinds`.
pub fn fault_schedule(
    seed: u64,
    round: u64,
    mode: DeploymentMode,
    enabled_kinds: &BTreeSet<FaultKind>,
    total_messages: u64,
) -> Vec<ScheduledFault> {
    let mut random = Random::new(seed, &[3, round]);
    let mut faults = match mode {
        DeploymentMode::Embedded => embedded_faults(&mut random),
        DeploymentMode::Distributed => distributed_faults(&mut random),
    };
    random.shuffle(&mut faults);
    faults.retain(|fault| enabled_kinds.contains(&fault.kind()));
    // A restart of the broker disconnects all clients, and most clients send an online message
    // again. These messages would hide an earlier loss of messages. Therefore the restart is one of
    // the first four faults.
    faults.sort_by_key(|fault| !fault.is_broker_restart());
    let faults_before_restart = usize::try_from(random.between(0, 3)).unwrap();
    let broker_restarts = faults.iter().filter(|fault| fault.is_broker_restart());
    let broker_restart_count = broker_restarts.count();
    let first_faults = faults
        .len()
        .min(broker_restart_count + faults_before_restart);
    faults[..first_faults].rotate_left(broker_restart_count);
    // The last faults of the round kill processes directly after the broker has acknowledged all
    // messages. The kills must not cause a loss of the last messages.
    let last_killed_process_indexes: &[usize] = match mode {
        _ if !enabled_kinds.contains(&FaultKind::Kill) => &[],
        DeploymentMode::Embedded => &[EMBEDDED_PROCESS_INDEX],
        DeploymentMode::Distributed => &[
            RECORD_PROCESS_INDEXES[0],
            INGEST_PROCESS_INDEX,
            RECORD_PROCESS_INDEXES[1],
        ],
    };
    let messages_per_fault = total_messages / faults.len().max(1) as u64;
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

fn random_millis(random: &mut Random, min: u64, max: u64) -> Duration {
    Duration::from_millis(random.between(min, max))
}

fn kill_fault(random: &mut Random, process_index: usize) -> Fault {
    Fault::Kill {
        process_index,
        downtime: random_millis(random, 0, 1000),
    }
}

fn pause_fault(random: &mut Random, process_index: usize, max_millis: u64) -> Fault {
    Fault::Pause {
        process_index,
        duration: random_millis(random, 1000, max_millis),
    }
}

fn embedded_faults(random: &mut Random) -> Vec<Fault> {
    let process_index = EMBEDDED_PROCESS_INDEX;
    let mut faults: Vec<Fault> = (0..7).map(|_| kill_fault(random, process_index)).collect();
    faults.extend((0..2).map(|_| pause_fault(random, process_index, 6000)));
    faults.push(Fault::Restart { process_index });
    faults.push(Fault::FillDisk {
        duration: random_millis(random, 2000, 6000),
    });
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
            downtime: random_millis(random, 0, 2000),
        });
    }
    faults.push(Fault::FreezePostgres {
        duration: random_millis(random, 2000, 8000),
    });
    faults.push(Fault::DropPostgresPackets {
        duration: random_millis(random, 3000, 12_000),
    });
    faults.push(Fault::RecreateTopics {
        downtime: random_millis(random, 0, 3000),
    });
    faults.extend(clock_skew_faults(random));
    faults
}

/// Two roles whose clocks differ in opposite directions. Each process keeps its clock until the next
/// fault of this kind, which may be in another round.
fn clock_skew_faults(random: &mut Random) -> [Fault; 2] {
    let mut process_indexes: Vec<usize> = (0..ROLES.len()).collect();
    random.shuffle(&mut process_indexes);
    let seconds = if random.chance(50) {
        MAX_CLOCK_SKEW_SECONDS
    } else {
        -MAX_CLOCK_SKEW_SECONDS
    };
    [
        Fault::SkewClock {
            process_index: process_indexes[0],
            seconds,
        },
        Fault::SkewClock {
            process_index: process_indexes[1],
            seconds: -seconds,
        },
    ]
}
