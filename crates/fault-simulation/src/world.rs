//! What all parts of a schedule share: the random numbers, the virtual time, the trace and the
//! violations.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use domain::{Clock, Timestamp};

/// Virtual time at which every schedule starts.
const START_TIME: &str = "2026-01-01T00:00:00Z";

/// A line of the trace.
#[derive(Debug, Clone)]
pub struct TraceLine {
    /// Virtual time since the start of the schedule.
    pub time: Duration,
    /// The client that the line is about. `None` for faults and for lines about several clients.
    pub client: Option<String>,
    pub text: String,
}

#[derive(Default)]
struct Trace {
    lines: Vec<TraceLine>,
    hasher: DefaultHasher,
}

/// What all parts of a schedule share. Everything runs in one thread, so the random numbers are drawn
/// in the same order in each run of a seed.
pub struct World {
    random: Mutex<fastrand::Rng>,
    started_at: Instant,
    start_time: Timestamp,
    last_time: Mutex<Timestamp>,
    trace: Mutex<Trace>,
    violations: Mutex<Vec<String>>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    is_healed: AtomicBool,
    /// Changes whenever a component may have something to do.
    changes: watch::Sender<u64>,
}

impl World {
    /// Creates the world of a schedule. Call this function in the runtime with virtual time.
    pub fn new(seed: u64) -> Arc<Self> {
        let start_time = START_TIME.parse().unwrap_or_default();
        Arc::new(Self {
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
            started_at: Instant::now(),
            start_time,
            last_time: Mutex::new(start_time),
            trace: Mutex::default(),
            violations: Mutex::default(),
            counts: Mutex::default(),
            is_healed: AtomicBool::new(false),
            changes: watch::Sender::new(0),
        })
    }

    /// Returns a random number in the range.
    pub fn between(&self, range: RangeInclusive<u64>) -> u64 {
        self.random.lock().u64(range)
    }

    /// Returns true with a probability of `percent`.
    pub fn chance(&self, percent: u64) -> bool {
        self.between(1..=100) <= percent
    }

    /// Returns a random duration in milliseconds.
    pub fn millis(&self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.between(range))
    }

    /// Returns the delay of one message between two machines. Most delays are short, a few are long.
    pub fn network_delay(&self) -> Duration {
        match self.between(1..=100) {
            1..=60 => Duration::ZERO,
            61..=95 => self.millis(1..=20),
            _ => self.millis(50..=800),
        }
    }

    pub fn shuffle<T>(&self, items: &mut [T]) {
        self.random.lock().shuffle(items);
    }

    /// Returns the virtual time since the start of the schedule.
    pub fn elapsed(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// Returns the current virtual time. Each call returns a later time: the timers of tokio have a
    /// resolution of one millisecond, but two messages do not arrive in the same microsecond.
    fn now(&self) -> Timestamp {
        let mut last_time = self.last_time.lock();
        let earliest = *last_time + Duration::from_micros(1);
        *last_time = earliest.max(self.start_time + self.elapsed());
        *last_time
    }

    /// Adds a line to the trace. The text must be the same in each run of the seed.
    pub fn trace(&self, client: Option<&str>, text: impl Into<String>) {
        let line = TraceLine {
            time: self.elapsed(),
            client: client.map(str::to_owned),
            text: text.into(),
        };
        let mut trace = self.trace.lock();
        (line.time, &line.client, &line.text).hash(&mut trace.hasher);
        trace.lines.push(line);
    }

    /// Returns the hash of all lines of the trace.
    pub fn trace_hash(&self) -> u64 {
        self.trace.lock().hasher.finish()
    }

    pub fn trace_lines(&self) -> Vec<TraceLine> {
        self.trace.lock().lines.clone()
    }

    /// Reports that the program violates a promise. The schedule then fails.
    pub fn report_violation(&self, client: Option<&str>, text: impl Into<String>) {
        let text = text.into();
        self.trace(client, format!("VIOLATION: {text}"));
        let client = client.map_or_else(String::new, |client| format!("{client}: "));
        self.violations.lock().push(format!("{client}{text}"));
    }

    pub fn violations(&self) -> Vec<String> {
        self.violations.lock().clone()
    }

    /// Counts an event, for the statistics of all schedules.
    pub fn count(&self, event: &'static str) {
        *self.counts.lock().entry(event).or_default() += 1;
    }

    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.counts.lock().clone()
    }

    /// Wakes all components that wait for a change of another component.
    pub fn notify(&self) {
        self.changes.send_modify(|number| *number += 1);
    }

    /// Returns a receiver for the changes after this call.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.is_healed.store(true, Ordering::Relaxed);
        self.trace(None, "all faults end");
    }

    pub fn is_healed(&self) -> bool {
        self.is_healed.load(Ordering::Relaxed)
    }

    /// Returns a clock that differs from the virtual time by `skew_seconds`.
    pub fn clock(self: &Arc<Self>, skew_seconds: i64) -> Arc<dyn Clock> {
        Arc::new(SkewedClock {
            world: self.clone(),
            skew: jiff::SignedDuration::from_secs(skew_seconds),
        })
    }
}

struct SkewedClock {
    world: Arc<World>,
    skew: jiff::SignedDuration,
}

impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        self.world.now() + self.skew
    }
}
