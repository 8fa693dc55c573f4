//! Stops asking a lookup service that does not answer, and finds out when it does again.
//!
//! It opens when at least half of the latest lookups of DIFFERENT clients had no answer: one odd
//! client cannot open it. While open, nobody is asked but one probe now and then; an answer to a
//! probe, whatever it says, closes it.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::domain::ClientId;
use crate::telemetry::metrics;

/// How many clients' latest lookups are looked at.
const WINDOW: usize = 20;
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Whether a lookup may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// Ask.
    Granted,
    /// Ask, as the one who finds out whether there is an answer again.
    Probe,
    /// Do not ask.
    Refused,
}

pub(super) struct Breaker {
    state: Mutex<State>,
    /// True while open. Whoever waits for an answer hears of it.
    open: watch::Sender<bool>,
    first_pause: Duration,
}

#[derive(Default)]
struct State {
    /// Each client once, the latest last: whether its lookup had no answer.
    latest: VecDeque<(ClientId, bool)>,
    open: Option<Open>,
}

struct Open {
    since: Instant,
    probe_at: Instant,
    pause: Duration,
    is_probing: bool,
}

impl Breaker {
    /// A closed one, which probes so long after it opened.
    pub fn new(first_pause: Duration) -> Self {
        Self {
            state: Mutex::default(),
            open: watch::Sender::new(false),
            first_pause,
        }
    }

    /// Whether to ask now.
    pub fn leave(&self) -> Admission {
        let mut state = self.state.lock();
        let Some(open) = &mut state.open else {
            return Admission::Granted;
        };
        if open.is_probing || Instant::now() < open.probe_at {
            return Admission::Refused;
        }
        open.is_probing = true;
        Admission::Probe
    }

    /// There was an answer. Once it is open, only a probe's counts: a late one says little.
    pub fn answered(&self, client: &ClientId, leave: Admission) {
        let mut state = self.state.lock();
        if state.open.is_some() && leave != Admission::Probe {
            return;
        }
        if let Some(open) = state.open.take() {
            state.latest.clear();
            let for_seconds = open.since.elapsed().as_secs();
            tracing::info!(for_seconds, "the tenant lookup answers again");
            metrics::lookup_breaker(false);
            self.open.send_replace(false);
            return;
        }
        note(&mut state.latest, client, false);
    }

    /// There was none.
    pub fn record_failure(&self, client: &ClientId, leave: Admission) {
        let mut state = self.state.lock();
        let now = Instant::now();
        if let Some(open) = &mut state.open {
            if leave == Admission::Probe {
                open.pause = (open.pause * 2).min(LONGEST_PAUSE);
                open.probe_at = now + open.pause;
                open.is_probing = false;
            }
            return;
        }
        note(&mut state.latest, client, true);
        let silent = state.latest.iter().filter(|(_, silent)| *silent).count();
        if state.latest.len() < WINDOW || silent * 2 < state.latest.len() {
            return;
        }
        state.open = Some(Open {
            since: now,
            probe_at: now + self.first_pause,
            pause: self.first_pause,
            is_probing: false,
        });
        tracing::error!(
            silent,
            of = WINDOW,
            "the tenant lookup does not answer; not asking but for a probe now and then"
        );
        metrics::lookup_breaker(true);
        self.open.send_replace(true);
    }

    /// A probe was given up before it had an answer or none.
    pub fn cancel_probe(&self) {
        if let Some(open) = &mut self.state.lock().open {
            open.is_probing = false;
        }
    }

    /// Resolves when it is open.
    pub async fn opened(&self) {
        let mut open = self.open.subscribe();
        // The sender lives as long as we do.
        let _ = open.wait_for(|open| *open).await;
    }

    /// Since when it is open.
    pub fn open_for(&self) -> Option<Duration> {
        self.state
            .lock()
            .open
            .as_ref()
            .map(|open| open.since.elapsed())
    }
}

fn note(latest: &mut VecDeque<(ClientId, bool)>, client: &ClientId, silent: bool) {
    latest.retain(|(known, _)| known != client);
    if latest.len() == WINDOW {
        latest.pop_front();
    }
    latest.push_back((client.clone(), silent));
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(5);

    fn client(n: usize) -> ClientId {
        ClientId::new(&format!("c{n}")).unwrap()
    }

    fn opened() -> Breaker {
        let breaker = Breaker::new(PAUSE);
        for n in 0..WINDOW {
            breaker.record_failure(&client(n), Admission::Granted);
        }
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn one_odd_client_cannot_open_it() {
        let breaker = Breaker::new(PAUSE);
        for _ in 0..1000 {
            breaker.record_failure(&client(0), Admission::Granted);
        }
        assert_eq!(breaker.leave(), Admission::Granted);
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_when_half_of_the_latest_clients_had_no_answer() {
        let breaker = Breaker::new(PAUSE);
        for n in 0..=WINDOW / 2 {
            breaker.answered(&client(n), Admission::Granted);
        }
        for n in 0..WINDOW / 2 - 1 {
            breaker.record_failure(&client(100 + n), Admission::Granted);
        }
        assert_eq!(breaker.leave(), Admission::Granted, "9 of 20");
        breaker.record_failure(&client(200), Admission::Granted);
        assert_eq!(breaker.leave(), Admission::Refused, "10 of the latest 20");
        breaker.opened().await;
        assert!(breaker.open_for().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn while_open_one_probe_at_a_time_is_let_through_ever_more_rarely() {
        let breaker = opened();
        assert_eq!(breaker.leave(), Admission::Refused);
        tokio::time::advance(PAUSE).await;
        assert_eq!(breaker.leave(), Admission::Probe);
        assert_eq!(breaker.leave(), Admission::Refused);
        breaker.record_failure(&client(8), Admission::Granted);
        assert_eq!(
            breaker.leave(),
            Admission::Refused,
            "a straggler is no probe"
        );
        breaker.record_failure(&client(7), Admission::Probe);
        tokio::time::advance(PAUSE).await;
        assert_eq!(breaker.leave(), Admission::Refused);
        tokio::time::advance(PAUSE).await;
        assert_eq!(breaker.leave(), Admission::Probe);
        breaker.cancel_probe();
        assert_eq!(breaker.leave(), Admission::Probe);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_closes_it_and_it_starts_over() {
        let breaker = opened();
        tokio::time::advance(PAUSE).await;
        assert_eq!(breaker.leave(), Admission::Probe);
        breaker.answered(&client(3), Admission::Granted);
        assert_eq!(
            breaker.leave(),
            Admission::Refused,
            "a late answer is no probe's"
        );
        breaker.answered(&client(1), Admission::Probe);
        assert_eq!(breaker.leave(), Admission::Granted);
        breaker.record_failure(&client(2), Admission::Granted);
        assert_eq!(breaker.leave(), Admission::Granted);
    }
}
