//! Circuit breaker for the lookup service.
//!
//! The breaker stores the latest lookup of each of 20 clients. It opens when at least half of these
//! lookups failed, so a single client cannot open the breaker. An open breaker rejects all lookups
//! except one probe at a time. A successful probe closes the breaker, whether the response
//! was "found" or "not found".

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::metrics;
use domain::ClientId;

/// Number of different clients whose latest lookups decide whether the breaker opens.
const CLIENTS_IN_WINDOW: usize = 20;
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(15);

/// Whether a lookup may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// The breaker is closed. The caller may send the lookup.
    Granted,
    /// The breaker is open. The caller may send the lookup as a probe.
    Probe,
    /// The breaker is open. The caller must not send the lookup.
    Rejected,
}

pub(super) struct Breaker {
    state: Mutex<BreakerState>,
    /// True while the breaker is open. [`Breaker::wait_until_open`] waits for this value.
    is_open: watch::Sender<bool>,
    initial_probe_interval: Duration,
}

#[derive(Default)]
struct BreakerState {
    /// The latest lookup of each client: the client id, and whether the lookup failed. The oldest
    /// lookup is first.
    latest_lookups: VecDeque<(ClientId, bool)>,
    /// When the breaker opened, and when the next probe is due. `None` while the breaker is closed.
    open_state: Option<OpenState>,
}

struct OpenState {
    opened_at: Instant,
    next_probe_at: Instant,
    probe_interval: Duration,
    is_probing: bool,
}

impl Breaker {
    /// Creates a closed breaker. When the breaker opens, it waits for `initial_probe_interval`
    /// before it admits the first probe.
    pub fn new(initial_probe_interval: Duration) -> Self {
        Self {
            state: Mutex::default(),
            is_open: watch::Sender::new(false),
            initial_probe_interval,
        }
    }

    /// Decides whether a lookup may be sent now. If the result is `Probe`, the caller must later
    /// call `record_success`, `record_failure` or `cancel_probe`.
    pub fn admit(&self) -> Admission {
        let mut state = self.state.lock();
        let Some(open) = &mut state.open_state else {
            return Admission::Granted;
        };
        if open.is_probing || Instant::now() < open.next_probe_at {
            return Admission::Rejected;
        }
        open.is_probing = true;
        Admission::Probe
    }

    /// Records a usable response. If the breaker is open, only the response to a probe closes the
    /// breaker. Other responses are ignored, because their requests were sent before the breaker
    /// opened.
    pub fn record_success(&self, client: &ClientId, admission: Admission) {
        let mut state = self.state.lock();
        if state.open_state.is_some() && admission != Admission::Probe {
            return;
        }
        if let Some(open) = state.open_state.take() {
            state.latest_lookups.clear();
            let open_seconds = open.opened_at.elapsed().as_secs();
            tracing::info!(open_seconds, "tenant lookup breaker closed");
            metrics::set_tenant_breaker_open(false);
            self.is_open.send_replace(false);
            return;
        }
        record_lookup(&mut state.latest_lookups, client, false);
    }

    /// Records a lookup without a usable response. Opens the breaker if at least half of the latest
    /// lookups failed. If the breaker is open, a failed probe doubles the probe interval.
    pub fn record_failure(&self, client: &ClientId, admission: Admission) {
        let mut state = self.state.lock();
        let now = Instant::now();
        if let Some(open) = &mut state.open_state {
            if admission == Admission::Probe {
                open.probe_interval = (open.probe_interval * 2).min(MAX_PROBE_INTERVAL);
                open.next_probe_at = now + open.probe_interval;
                open.is_probing = false;
            }
            return;
        }
        record_lookup(&mut state.latest_lookups, client, true);
        let lookups = state.latest_lookups.len();
        let failed_lookups = state.latest_lookups.iter().filter(|(_, failed)| *failed);
        let failed_lookups = failed_lookups.count();
        if lookups < CLIENTS_IN_WINDOW || failed_lookups * 2 < lookups {
            return;
        }
        state.open_state = Some(OpenState {
            opened_at: now,
            next_probe_at: now + self.initial_probe_interval,
            probe_interval: self.initial_probe_interval,
            is_probing: false,
        });
        tracing::error!(
            failed = failed_lookups,
            lookups,
            "tenant lookup breaker opened"
        );
        metrics::set_tenant_breaker_open(true);
        self.is_open.send_replace(true);
    }

    /// Cancels a probe that was admitted but not sent. The next lookup becomes the probe.
    pub fn cancel_probe(&self) {
        if let Some(open) = &mut self.state.lock().open_state {
            open.is_probing = false;
        }
    }

    /// Waits until the breaker is open.
    pub async fn wait_until_open(&self) {
        let mut is_open = self.is_open.subscribe();
        // `wait_for` fails only after the sender is dropped, but `self` owns the sender.
        let _ = is_open.wait_for(|is_open| *is_open).await;
    }

    /// Returns how long the breaker has been open, or `None` if the breaker is closed.
    pub fn open_duration(&self) -> Option<Duration> {
        self.state
            .lock()
            .open_state
            .as_ref()
            .map(|open| open.opened_at.elapsed())
    }
}

fn record_lookup(latest_lookups: &mut VecDeque<(ClientId, bool)>, client: &ClientId, failed: bool) {
    latest_lookups.retain(|(other, _)| other != client);
    if latest_lookups.len() == CLIENTS_IN_WINDOW {
        latest_lookups.pop_front();
    }
    latest_lookups.push_back((client.clone(), failed));
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBE_INTERVAL: Duration = Duration::from_secs(5);

    fn client(n: usize) -> ClientId {
        ClientId::new(&format!("c{n}")).unwrap()
    }

    fn open_breaker() -> Breaker {
        let breaker = Breaker::new(PROBE_INTERVAL);
        for n in 0..CLIENTS_IN_WINDOW {
            breaker.record_failure(&client(n), Admission::Granted);
        }
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_one_client_do_not_open_the_breaker() {
        let breaker = Breaker::new(PROBE_INTERVAL);
        for _ in 0..1000 {
            breaker.record_failure(&client(0), Admission::Granted);
        }
        assert_eq!(breaker.admit(), Admission::Granted);
    }

    #[tokio::test(start_paused = true)]
    async fn breaker_opens_when_half_of_the_latest_lookups_failed() {
        let breaker = Breaker::new(PROBE_INTERVAL);
        for n in 0..=CLIENTS_IN_WINDOW / 2 {
            breaker.record_success(&client(n), Admission::Granted);
        }
        for n in 0..CLIENTS_IN_WINDOW / 2 - 1 {
            breaker.record_failure(&client(100 + n), Admission::Granted);
        }
        assert_eq!(breaker.admit(), Admission::Granted, "9 of 20 failed");
        breaker.record_failure(&client(200), Admission::Granted);
        assert_eq!(breaker.admit(), Admission::Rejected, "10 of 20 failed");
        breaker.wait_until_open().await;
        assert!(breaker.open_duration().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn open_breaker_admits_one_probe_at_a_time_with_increasing_intervals() {
        let breaker = open_breaker();
        assert_eq!(breaker.admit(), Admission::Rejected);
        tokio::time::advance(PROBE_INTERVAL).await;
        assert_eq!(breaker.admit(), Admission::Probe);
        assert_eq!(breaker.admit(), Admission::Rejected);
        breaker.record_failure(&client(8), Admission::Granted);
        assert_eq!(
            breaker.admit(),
            Admission::Rejected,
            "a late failure from before the breaker opened does not end the probe"
        );
        breaker.record_failure(&client(7), Admission::Probe);
        tokio::time::advance(PROBE_INTERVAL).await;
        assert_eq!(breaker.admit(), Admission::Rejected);
        tokio::time::advance(PROBE_INTERVAL).await;
        assert_eq!(breaker.admit(), Admission::Probe);
        breaker.cancel_probe();
        assert_eq!(breaker.admit(), Admission::Probe);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_successful_probe_closes_the_breaker_and_clears_its_failures() {
        let breaker = open_breaker();
        tokio::time::advance(PROBE_INTERVAL).await;
        assert_eq!(breaker.admit(), Admission::Probe);
        breaker.record_success(&client(3), Admission::Granted);
        assert_eq!(
            breaker.admit(),
            Admission::Rejected,
            "a late success from before the breaker opened does not close it"
        );
        breaker.record_success(&client(1), Admission::Probe);
        assert_eq!(breaker.admit(), Admission::Granted);
        breaker.record_failure(&client(2), Admission::Granted);
        assert_eq!(breaker.admit(), Admission::Granted);
    }
}
