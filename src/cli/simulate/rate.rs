//! Operations at a fixed rate: starting the clients, and publishing updates.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::client::Client;
use super::fleet::Fleet;

const TICK: Duration = Duration::from_millis(10);

/// Grants permits at a constant average rate.
struct RateLimiter {
    per_second: f64,
    started: Instant,
    granted: u64,
    ticks: Interval,
}

impl RateLimiter {
    fn new(per_second: u32) -> Self {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            per_second: f64::from(per_second),
            started: Instant::now(),
            granted: 0,
            ticks,
        }
    }

    /// Waits for the next tick and returns the number of permits that have accrued since the last
    /// call. The first call grants one permit without delay.
    async fn permits(&mut self) -> u64 {
        self.ticks.tick().await;
        let accrued = self.started.elapsed().as_secs_f64() * self.per_second;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive count"
        )]
        let accrued = accrued as u64 + 1;
        let permits = accrued.saturating_sub(self.granted);
        self.granted += permits;
        permits
    }
}

/// Starts all clients at a rate of `per_second`.
pub(super) async fn start_clients(fleet: &Fleet, clients: &[Arc<Client>], per_second: u32) {
    let mut limiter = RateLimiter::new(per_second);
    let mut remaining = clients.iter();
    while remaining.len() > 0 {
        for _ in 0..limiter.permits().await {
            let Some(client) = remaining.next() else {
                return;
            };
            fleet.tasks.spawn(client.clone().run());
        }
    }
}

/// Publishes updates, one client after the other, forever. A client that still waits for the
/// PUBACK of its previous message is skipped. If no client is free, the permits expire.
pub(super) async fn publish_updates(fleet: &Fleet, clients: &[Arc<Client>], per_second: u32) {
    let mut limiter = RateLimiter::new(per_second);
    let mut round_robin = clients.iter().cycle();
    loop {
        for _ in 0..limiter.permits().await {
            let free = round_robin.by_ref().take(clients.len()).find_map(|client| {
                let session = client.session.lock().clone()?;
                let lock = session.try_lock_presence()?;
                Some((session, lock))
            });
            let Some((session, lock)) = free else {
                break;
            };
            fleet.tasks.spawn(session.publish_update(lock));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn limiter_grants_the_configured_rate() {
        let mut limiter = RateLimiter::new(500);
        let started = Instant::now();
        let mut granted = 0;
        while started.elapsed() < Duration::from_secs(10) {
            granted += limiter.permits().await;
        }
        assert!((4990..=5010).contains(&granted), "{granted}");
    }
}
