//! One set-up from its start to its end: rounds of a fleet at work under faults, each closed by the
//! check.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::check::{self, Mismatch, ObservedState, TrackedClient};
use crate::clients::{Client, World};
use crate::gate::Gate;
use crate::plan::{self, Fault, Kind, Strike};
use crate::random::Random;
use crate::setup::SetUp;

/// How many faults may strike at once.
const AT_ONCE: usize = 2;
/// How long the table may take to be as the model says, once nothing happens any more. Nobody waits
/// it out unless something is lost.
const SETTLE_WAIT: Duration = Duration::from_mins(2);
/// A fleet that gets no further for this long never will.
const STALL: Duration = Duration::from_mins(5);

/// What happened, for the last line.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    pub rounds: u64,
    pub acknowledged: u64,
    pub kills: u64,
    pub restarts: u64,
    pub services: u64,
    pub pauses: u64,
    pub letters: usize,
    pub connected: usize,
    pub slowest: Duration,
}

/// How a run ended that did not end well.
pub struct Failure {
    pub why: String,
    pub differences: Vec<Mismatch>,
    pub seen: Option<ObservedState>,
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self {
            why,
            differences: Vec::new(),
            seen: None,
        }
    }
}

/// A run of one set-up.
pub struct Run {
    pub kind: Kind,
    pub seed: u64,
    pub tally: Tally,
    pub fleet: Vec<TrackedClient>,
    /// What struck, and when it was over.
    pub faults: Arc<Mutex<Vec<String>>>,
    clients: Vec<Client>,
    set_up: Arc<SetUp>,
    world: Arc<World>,
}

impl Run {
    pub async fn start(kind: Kind, seed: u64, folder: &Path) -> Result<Self, String> {
        let manners: Vec<_> = (0..plan::CLIENTS)
            .map(|client| plan::manner(seed, kind, client))
            .collect();
        let set_up = SetUp::start(kind, folder, &manners).await?;
        let world = Arc::new(World {
            address: set_up.mqtt.clone(),
            acknowledged: AtomicU64::new(0),
        });
        let clients: Vec<_> = manners
            .into_iter()
            .enumerate()
            .map(|(n, manner)| {
                let random = Random::new(seed, &[4, n as u64]);
                Client::new(manner, world.clone(), random)
            })
            .collect();
        let fleet = clients.iter().map(|client| TrackedClient {
            manner: client.manner.clone(),
            story: client.story.clone(),
        });
        Ok(Self {
            kind,
            seed,
            tally: Tally::default(),
            fleet: fleet.collect(),
            faults: Arc::default(),
            clients,
            set_up: Arc::new(set_up),
            world,
        })
    }

    /// Rounds until the time is up and there were so many kills; one at least.
    pub async fn rounds(&mut self, until: Instant, kills: u64) -> Result<(), Failure> {
        let began = Instant::now();
        for round in 0.. {
            let outcome = self.round(round).await;
            self.tally.acknowledged = self.world.acknowledged.load(Ordering::Relaxed);
            outcome?;
            self.tally.rounds += 1;
            if Instant::now() >= until && self.tally.kills >= kills {
                break;
            }
            println!("{}, {} s so far", self.line(), began.elapsed().as_secs());
        }
        Ok(())
    }

    async fn round(&mut self, round: u64) -> Result<(), Failure> {
        let gate = Arc::new(Gate::new());
        let (end, over) = watch::channel(false);
        let mut working = JoinSet::new();
        let mut messages = 0;
        for (n, mut client) in self.clients.drain(..).enumerate() {
            let script = plan::script(self.seed, round, n, &client.manner);
            messages += script.iter().map(|step| step.act.messages()).sum::<u64>();
            let (gate, over) = (gate.clone(), over.clone());
            working.spawn(async move {
                client.live(script, &gate, over).await;
                client
            });
        }
        self.faults.lock().clear();
        let strikes = plan::strikes(self.seed, round, self.kind, messages);
        tokio::select! {
            struck = self.strike(strikes, &gate, messages) => struck?,
            // Clients rest until they are told that the round is over.
            Some(ended) = working.join_next() => {
                let why = ended.err().map_or(String::new(), |error| error.to_string());
                return Err(format!("a client of the test ended: {why}").into());
            }
        }
        let checked = self.check().await;
        end.send_replace(true);
        while let Some(client) = working.join_next().await {
            let client = client.map_err(|error| format!("a client of the test failed: {error}"))?;
            self.clients.push(client);
        }
        self.clients
            .sort_by(|one, other| one.manner.name.cmp(&other.manner.name));
        checked
    }

    /// Lets the faults strike, each at its moment, and the fleet go on no further than the next.
    async fn strike(&mut self, strikes: Vec<Strike>, gate: &Gate, all: u64) -> Result<(), String> {
        let lead = all / strikes.len() as u64;
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let mut striking: JoinSet<Result<Duration, String>> = JoinSet::new();
        for strike in strikes {
            let place = places.clone().acquire_owned().await;
            let place = place.expect("it is never closed");
            gate.open_to(strike.after + lead);
            reached(gate, strike.after).await?;
            tokio::time::sleep(strike.later).await;
            self.count(strike.fault);
            let (set_up, faults) = (self.set_up.clone(), self.faults.clone());
            striking.spawn(async move {
                let _place = place;
                let began = Timestamp::now();
                let suffered = set_up.suffer(strike.fault).await;
                let Strike { after, fault, .. } = strike;
                let told = format!("{began:.3} to {:.3} {fault:?}", Timestamp::now());
                let line = format!("{told}, after {after} messages");
                faults.lock().push(line);
                suffered.map_err(|why| format!("{why} ({told})"))
            });
            while let Some(over) = striking.try_join_next() {
                self.recovered(over.map_err(|error| error.to_string())??);
            }
        }
        gate.open_to(u64::MAX);
        reached(gate, all).await?;
        while let Some(over) = striking.join_next().await {
            self.recovered(over.map_err(|error| error.to_string())??);
        }
        Ok(())
    }

    fn count(&mut self, fault: Fault) {
        match fault {
            Fault::Kill { .. } => self.tally.kills += 1,
            Fault::Pause { .. } => self.tally.pauses += 1,
            Fault::Restart { .. } => self.tally.restarts += 1,
            Fault::Service { .. } => self.tally.services += 1,
        }
    }

    fn recovered(&mut self, within: Duration) {
        self.tally.slowest = self.tally.slowest.max(within);
    }

    /// The table must come to what the model says, and stay so.
    async fn check(&mut self) -> Result<(), Failure> {
        self.set_up.all_ready(SETTLE_WAIT).await?;
        let deadline = Instant::now() + SETTLE_WAIT;
        let mut right_since = None;
        loop {
            let is_late = Instant::now() > deadline;
            match ObservedState::now(&self.set_up).await {
                Ok(seen) => {
                    let differences = check::differences(&self.fleet, &seen);
                    let was_right = right_since.is_some();
                    if differences.is_empty() {
                        self.tally.connected = seen.rows.len();
                        self.tally.letters = seen.letters.values().map(BTreeSet::len).sum();
                        let since = *right_since.get_or_insert_with(Instant::now);
                        if since.elapsed() >= self.set_up.must_hold_for() {
                            break;
                        }
                    } else if is_late || was_right {
                        return Err(differs(was_right, differences, seen));
                    }
                }
                // A busy machine may answer late.
                Err(why) if is_late => return Err(why.into()),
                Err(_) => {}
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok(self.set_up.all_ready(SETTLE_WAIT).await?)
    }

    pub fn keep_logs(&self) {
        self.set_up.keep_logs();
    }

    /// What happened so far, in a line.
    pub fn line(&self) -> String {
        let Tally {
            rounds,
            acknowledged,
            kills,
            restarts,
            services,
            pauses,
            letters,
            connected,
            slowest,
        } = &self.tally;
        format!(
            "chaos {}: seed {}: {} clients ({connected} connected), {acknowledged} messages \
             acknowledged, {letters} dead letters, {kills} kills, {pauses} pauses, {restarts} \
             restarts, {services} restarts of services, {rounds} rounds, longest recovery {:.1} s",
            self.kind.name(),
            self.seed,
            plan::CLIENTS,
            slowest.as_secs_f64(),
        )
    }
}

fn differs(was_right: bool, differences: Vec<Mismatch>, seen: ObservedState) -> Failure {
    let why = if was_right {
        "the table was right, and is no more"
    } else {
        "the table differs from the model"
    };
    Failure {
        why: why.to_owned(),
        differences,
        seen: Some(seen),
    }
}

async fn reached(gate: &Gate, messages: u64) -> Result<(), String> {
    match tokio::time::timeout(STALL, gate.reached(messages)).await {
        Ok(()) => Ok(()),
        Err(_) => Err(format!("the fleet does not get to {messages} messages")),
    }
}
