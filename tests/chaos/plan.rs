//! What every client does and which faults strike when: from the seed alone. Faults are tied to how
//! many messages have been acknowledged, so that a slow machine gets the same plan as a fast one.

use std::time::Duration;

use crate::random::Random;

pub const CLIENTS: usize = 2000;
/// Messages of each client in a round.
const MESSAGES_EACH: u64 = 10;

/// Which set-up is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Embedded,
    Distributed,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Distributed => "distributed",
        }
    }
}

/// What a client is, for as long as it lives.
#[derive(Debug, Clone)]
pub struct Profile {
    pub name: String,
    pub handshake: bool,
    /// Says nothing when it reconnects, but for a sign of life.
    pub quiet: bool,
    pub clock: Clock,
    pub tenant: Tenant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    Right,
    /// An hour fast, always.
    Fast,
    /// Now and then it is set back by hours, and right again.
    Set,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenant {
    Default,
    Other,
    Nobody,
}

impl Tenant {
    /// Organisation and account.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Default => ("10000", "111000"),
            Self::Other => ("10001", "010101"),
            Self::Nobody => ("", ""),
        }
    }
}

/// One thing that a client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Says what it is; with a message id or without.
    Online { with_id: bool },
    /// Says so several times without waiting for the answers.
    Burst(u64),
    /// Says its last word again, byte for byte.
    Again,
    /// Says something that was sent a little before its last word.
    Old { seconds: u64 },
    /// The clock is set, and then it says what it is.
    ClockSet { back_hours: u64 },
    /// Something that can never be processed: which kind, and which of that kind.
    Garbage(u64, u64),
    /// A second connection takes over from the first, and says what it is.
    Takeover,
    /// Says farewell and disconnects.
    Leave,
    /// The connection is cut: the will speaks.
    Truncated,
}

impl Action {
    pub fn messages(self) -> u64 {
        match self {
            Self::Burst(count) => count,
            Self::Truncated => 0,
            _ => 1,
        }
    }
}

pub const GARBAGE_KINDS: u64 = 6;

/// An act, and how long the client waits before it.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    pub wait: Duration,
    pub act: Action,
}

pub fn manner(seed: u64, kind: Kind, client: usize) -> Profile {
    let mut random = Random::new(seed, &[1, client as u64]);
    let handshake = random.chance(15);
    // Through a queue a sign of life can be lost (see the known limits in docs/ARCHITECTURE.md); in
    // one process it cannot, and a client that stays quiet hides nothing that was lost.
    let quiet = kind == Kind::Embedded && !handshake && random.chance(75);
    let clock = match random.between(1, 100) {
        1..=5 => Clock::Fast,
        6..=15 => Clock::Set,
        _ => Clock::Right,
    };
    let tenant = match random.between(1, 100) {
        1..=6 => Tenant::Nobody,
        7..=20 => Tenant::Other,
        _ => Tenant::Default,
    };
    Profile {
        name: format!("chaos-{client:04}"),
        handshake,
        quiet,
        clock,
        tenant,
    }
}

/// What a client does in a round. It ends connected, gone by its own word, or cut.
pub fn script(seed: u64, round: u64, client: usize, manner: &Profile) -> Vec<Step> {
    let mut random = Random::new(seed, &[2, round, client as u64]);
    let end = match random.between(1, 100) {
        1..=14 => Some(Action::Leave),
        15..=28 => Some(Action::Truncated),
        _ => None,
    };
    let budget = MESSAGES_EACH - end.map_or(0, Action::messages);
    let mut acts = Vec::new();
    let mut used = 0;
    // Whoever left says what it is before anything else.
    let mut is_here = false;
    while used < budget {
        let act = if is_here {
            next_act(&mut random, manner, budget - used)
        } else {
            online(&mut random, manner)
        };
        is_here = !matches!(act, Action::Leave | Action::Truncated);
        used += act.messages();
        acts.push(act);
    }
    if end.is_none() && !is_here {
        // It meant to end connected: staying is enough.
        acts.pop();
        acts.push(Action::Online { with_id: true });
    }
    acts.extend(end.filter(|_| is_here));
    let pad = MESSAGES_EACH.saturating_sub(acts.iter().map(|act| act.messages()).sum());
    let front = std::iter::repeat_n(
        Action::Online { with_id: true },
        usize::try_from(pad).unwrap(),
    );
    front
        .chain(acts)
        .map(|act| Step {
            wait: Duration::from_millis(random.between(0, 1000)),
            act,
        })
        .collect()
}

fn online(random: &mut Random, manner: &Profile) -> Action {
    Action::Online {
        // A handshake needs one.
        with_id: manner.handshake || !random.chance(5),
    }
}

fn next_act(random: &mut Random, manner: &Profile, most: u64) -> Action {
    let is_right = manner.clock == Clock::Right;
    match random.between(1, 100) {
        1..=10 => Action::Burst(random.between(2, 4).min(most)),
        // With a fast clock every message counts as sent when it comes: a repetition would be news.
        11..=18 if manner.clock != Clock::Fast => Action::Again,
        19..=24 if is_right && !manner.handshake => Action::Old {
            seconds: random.between(1, 500),
        },
        25..=29 => Action::Garbage(random.between(1, GARBAGE_KINDS), random.between(1, 2)),
        30..=36 => Action::Takeover,
        37..=43 => Action::Leave,
        44..=52 => Action::Truncated,
        53..=80 if manner.clock == Clock::Set => Action::ClockSet {
            back_hours: if random.chance(50) { 5 } else { 0 },
        },
        _ => online(random, manner),
    }
}

/// What strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// kill -9 of this process, and a start after a while.
    Kill { process: usize, away: Duration },
    /// SIGSTOP, and SIGCONT after a while.
    Pause { process: usize, length: Duration },
    /// SIGTERM, and a start.
    Restart { process: usize },
    /// A service ends, in order or not, and starts again.
    Service {
        service: Service,
        hard: bool,
        away: Duration,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    Mosquitto,
    Kafka,
    Postgres,
}

/// A fault and its moment: after so many messages, and a little later.
#[derive(Debug, Clone, Copy)]
pub struct Strike {
    pub after: u64,
    pub later: Duration,
    pub fault: Fault,
}

/// The processes of the distributed set-up, by role.
pub const ROLES: [&str; 5] = ["ingest", "record", "record", "api", "updaters"];

/// `messages` is how many all clients have to say.
pub fn strikes(seed: u64, round: u64, kind: Kind, messages: u64) -> Vec<Strike> {
    let mut random = Random::new(seed, &[3, round]);
    let mut faults = match kind {
        Kind::Embedded => embedded_faults(&mut random),
        Kind::Distributed => distributed_faults(&mut random),
    };
    random.shuffle(&mut faults);
    // A restart of the broker cuts everybody, and who comes back says again what it is. So it comes
    // early: what is lost later must show.
    faults.sort_by_key(|fault| !is_broker_restart(fault));
    let front = usize::try_from(random.between(0, 3)).unwrap();
    let broker = faults.iter().filter(|fault| is_broker_restart(fault));
    let count = broker.count();
    faults[..count + front].rotate_left(count);
    // The last words of many have just been acknowledged then.
    let last: &[usize] = match kind {
        Kind::Embedded => &[0],
        Kind::Distributed => &[1, 0, 2],
    };
    let spacing = messages / faults.len() as u64;
    let mut strikes: Vec<Strike> = Vec::new();
    for (n, fault) in faults.into_iter().enumerate() {
        strikes.push(Strike {
            after: spacing * n as u64 + random.between(spacing / 4, spacing),
            later: Duration::from_millis(random.between(0, 300)),
            fault,
        });
    }
    for process in last {
        strikes.push(Strike {
            after: messages,
            later: Duration::from_millis(random.between(0, 100)),
            fault: kill(&mut random, *process),
        });
    }
    strikes
}

fn is_broker_restart(fault: &Fault) -> bool {
    let broker = Service::Mosquitto;
    matches!(fault, Fault::Service { service, .. } if *service == broker)
}

fn kill(random: &mut Random, process: usize) -> Fault {
    Fault::Kill {
        process,
        away: Duration::from_millis(random.between(0, 1000)),
    }
}

fn pause(random: &mut Random, process: usize, most: u64) -> Fault {
    Fault::Pause {
        process,
        length: Duration::from_millis(random.between(1000, most)),
    }
}

fn embedded_faults(random: &mut Random) -> Vec<Fault> {
    let mut faults: Vec<Fault> = (0..7).map(|_| kill(random, 0)).collect();
    faults.extend((0..2).map(|_| pause(random, 0, 6000)));
    faults.push(Fault::Restart { process: 0 });
    faults
}

fn distributed_faults(random: &mut Random) -> Vec<Fault> {
    let mut faults = Vec::new();
    for process in [0, 0, 1, 2, 3, 4] {
        faults.push(kill(random, process));
    }
    let ours = ROLES.len() as u64 - 1;
    let any = usize::try_from(random.between(0, ours)).unwrap();
    faults.push(kill(random, any));
    // Longer than a group waits for its member, now and then: then its partitions go to the other.
    faults.push(pause(random, 1, 12_000));
    for process in [0, any] {
        faults.push(pause(random, process, 5000));
    }
    let process = usize::try_from(random.between(0, ours)).unwrap();
    faults.push(Fault::Restart { process });
    for service in [Service::Mosquitto, Service::Kafka, Service::Postgres] {
        faults.push(Fault::Service {
            service,
            // Killed, Mosquitto loses what it has not saved: a known limit.
            hard: service != Service::Mosquitto && random.chance(50),
            away: Duration::from_millis(random.between(0, 2000)),
        });
    }
    faults
}
