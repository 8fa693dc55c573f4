//! Circuit breaker for requests to another service.
//!
//! The breaker stores the latest request for each of 20 clients. It opens when at least half of these
//! requests failed, so a single client cannot open the breaker. An open breaker rejects all requests
//! except one probe at a time. A successful probe closes the breaker.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// Number of different clients whose latest requests decide whether the breaker opens.
const CLIENTS_IN_WINDOW: usize = 20;
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(15);

/// Whether a request may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The breaker is closed. The caller may send the request.
    Granted,
    /// The breaker is open. The caller may send the request as a probe.
    Probe,
    /// The breaker is open. The caller must not send the request.
    Rejected,
}

/// A circuit breaker. `Client` identifies the client that a request is for.
pub struct Breaker<Client> {
    /// Name of the breaker in the log.
    name: &'static str,
    initial_probe_interval: Duration,
    /// Sets the metric that shows whether the breaker is open.
    set_metric: fn(bool),
    state: Mutex<BreakerState<Client>>,
    /// True while the breaker is open. [`Breaker::wait_until_open`] waits for this value.
    is_open: watch::Sender<bool>,
}

struct BreakerState<Client> {
    /// The latest request for each client: the client, and whether the request failed. The oldest
    /// request is first.
    latest_requests: VecDeque<(Client, bool)>,
    /// When the breaker opened, and when the next probe is due. `None` while the breaker is closed.
    open_state: Option<OpenState>,
}

struct OpenState {
    opened_at: Instant,
    next_probe_at: Instant,
    probe_interval: Duration,
    is_probing: bool,
}

impl<Client: Clone + PartialEq> Breaker<Client> {
    /// Creates a closed breaker. When the breaker opens, it waits for `initial_probe_interval`
    /// before it admits the first probe. `set_metric` is called when the breaker opens or closes.
    #[must_use]
    pub fn new(name: &'static str, initial_probe_interval: Duration, set_metric: fn(bool)) -> Self {
        Self {
            name,
            initial_probe_interval,
            set_metric,
            state: Mutex::new(BreakerState {
                latest_requests: VecDeque::new(),
                open_state: None,
            }),
            is_open: watch::Sender::new(false),
        }
    }

    /// Decides whether a request may be sent now. If the result is `Probe`, the caller must later
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

    /// Records a successful request. If the breaker is open, only a successful probe closes the
    /// breaker. Other requests are ignored, because they were sent before the breaker opened.
    pub fn record_success(&self, client: &Client, admission: Admission) {
        let mut state = self.state.lock();
        if state.open_state.is_some() && admission != Admission::Probe {
            return;
        }
        if let Some(open) = state.open_state.take() {
            state.latest_requests.clear();
            let open_seconds = open.opened_at.elapsed().as_secs();
            tracing::info!(open_seconds, "{} breaker closed", self.name);
            (self.set_metric)(false);
            self.is_open.send_replace(false);
            return;
        }
        record_request(&mut state.latest_requests, client, false);
    }

    /// Records a failed request. Opens the breaker if at least half of the latest requests failed.
    /// If the breaker is open, a failed probe doubles the probe interval.
    pub fn record_failure(&self, client: &Client, admission: Admission) {
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
        record_request(&mut state.latest_requests, client, true);
        let requests = state.latest_requests.len();
        let failed_requests = state.latest_requests.iter().filter(|(_, failed)| *failed);
        let failed_requests = failed_requests.count();
        if requests < CLIENTS_IN_WINDOW || failed_requests * 2 < requests {
            return;
        }
        state.open_state = Some(OpenState {
            opened_at: now,
            next_probe_at: now + self.initial_probe_interval,
            probe_interval: self.initial_probe_interval,
            is_probing: false,
        });
        tracing::error!(
            failed = failed_requests,
            requests,
            "{} breaker opened",
            self.name
        );
        (self.set_metric)(true);
        self.is_open.send_replace(true);
    }

    /// Cancels a probe that was admitted but not sent. The next request becomes the probe.
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

fn record_request<Client: Clone + PartialEq>(
    latest_requests: &mut VecDeque<(Client, bool)>,
    client: &Client,
    failed: bool,
) {
    latest_requests.retain(|(other, _)| other != client);
    if latest_requests.len() == CLIENTS_IN_WINDOW {
        latest_requests.pop_front();
    }
    latest_requests.push_back((client.clone(), failed));
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBE_INTERVAL: Duration = Duration::from_secs(5);

    fn closed_breaker() -> Breaker<usize> {
        Breaker::new("test", PROBE_INTERVAL, |_| {})
    }

    fn open_breaker() -> Breaker<usize> {
        let breaker = closed_breaker();
        for n in 0..CLIENTS_IN_WINDOW {
            breaker.record_failure(&n, Admission::Granted);
        }
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_one_client_do_not_open_the_breaker() {
        let breaker = closed_breaker();
        for _ in 0..1000 {
            breaker.record_failure(&0, Admission::Granted);
        }
        assert_eq!(breaker.admit(), Admission::Granted);
    }

    #[tokio::test(start_paused = true)]
    async fn breaker_opens_when_half_of_the_latest_requests_failed() {
        let breaker = closed_breaker();
        for n in 0..=CLIENTS_IN_WINDOW / 2 {
            breaker.record_success(&n, Admission::Granted);
        }
        for n in 0..CLIENTS_IN_WINDOW / 2 - 1 {
            breaker.record_failure(&(100 + n), Admission::Granted);
        }
        assert_eq!(breaker.admit(), Admission::Granted, "9 of 20 failed");
        breaker.record_failure(&200, Admission::Granted);
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
        breaker.record_failure(&8, Admission::Granted);
        assert_eq!(
            breaker.admit(),
            Admission::Rejected,
            "a late failure from before the breaker opened does not end the probe"
        );
        breaker.record_failure(&7, Admission::Probe);
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
        breaker.record_success(&3, Admission::Granted);
        assert_eq!(
            breaker.admit(),
            Admission::Rejected,
            "a late success from before the breaker opened does not close it"
        );
        breaker.record_success(&1, Admission::Probe);
        assert_eq!(breaker.admit(), Admission::Granted);
        breaker.record_failure(&2, Admission::Granted);
        assert_eq!(breaker.admit(), Admission::Granted);
    }
}
