//! So many a second: starting clients, and having them report changes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::client::Client;
use super::fleet::Fleet;

const TICK: Duration = Duration::from_millis(10);

struct RateLimiter {
    per_second: f64,
    began: Instant,
    granted: u64,
    ticks: Interval,
}

impl RateLimiter {
    fn new(per_second: u32) -> Self {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            per_second: f64::from(per_second),
            began: Instant::now(),
            granted: 0,
            ticks,
        }
    }

    /// Waits a moment; then, how many are due.
    async fn due(&mut self) -> u64 {
        self.ticks.tick().await;
        let by_now = self.began.elapsed().as_secs_f64() * self.per_second;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count"
        )]
        // The first is due at once.
        let by_now = by_now as u64 + 1;
        let due = by_now.saturating_sub(self.granted);
        self.granted += due;
        due
    }
}

/// Starts every client, so many a second.
pub(super) async fn start(fleet: &Fleet, clients: &[Arc<Client>], per_second: u32) {
    let mut pace = RateLimiter::new(per_second);
    let mut waiting = clients.iter();
    while waiting.len() > 0 {
        for _ in 0..pace.due().await {
            let Some(client) = waiting.next() else {
                return;
            };
            fleet.stopper.spawn(client.clone().live());
        }
    }
}

/// Has one client after the other report a change. Each waits for its acknowledgement before it
/// reports the next; what nobody could say in time is not caught up on.
pub(super) async fn keep_changing(fleet: &Fleet, clients: &[Arc<Client>], per_second: u32) {
    let mut pace = RateLimiter::new(per_second);
    let mut next = clients.iter().cycle();
    loop {
        for _ in 0..pace.due().await {
            let found = next.by_ref().take(clients.len()).find_map(|client| {
                let speaker = client.seat.lock().clone()?;
                let mouth = speaker.try_mouth()?;
                Some((speaker, mouth))
            });
            let Some((speaker, mouth)) = found else {
                break;
            };
            fleet.stopper.spawn(speaker.change(mouth));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pace_is_kept_over_time() {
        let mut pace = RateLimiter::new(500);
        let began = Instant::now();
        let mut granted = 0;
        while began.elapsed() < Duration::from_secs(10) {
            granted += pace.due().await;
        }
        assert!((4990..=5010).contains(&granted), "{granted}");
    }
}
