//! Starts the clients and publishes updates, both at a fixed rate.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::client::Client;
use super::fleet::Fleet;

const TICK_INTERVAL: Duration = Duration::from_millis(10);

/// Grants permits at a constant average rate.
struct RateLimiter {
    permits_per_second: f64,
    started_at: Instant,
    granted_permits: u64,
    ticks: Interval,
}

impl RateLimiter {
    fn new(permits_per_second: u32) -> Self {
        let mut ticks = interval(TICK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            permits_per_second: f64::from(permits_per_second),
            started_at: Instant::now(),
            granted_permits: 0,
            ticks,
        }
    }

    /// Waits for the next tick. Returns the number of permits for the time since the previous call.
    /// The first call returns one permit without delay.
    async fn next_permits(&mut self) -> u64 {
        self.ticks.tick().await;
        let accrued = self.started_at.elapsed().as_secs_f64() * self.permits_per_second;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive count"
        )]
        let accrued = accrued as u64 + 1;
        let permits = accrued.saturating_sub(self.granted_permits);
        self.granted_permits += permits;
        permits
    }
}

/// Starts all clients, at a rate of `clients_per_second`.
pub(super) async fn start_clients(fleet: &Fleet, clients: &[Arc<Client>], clients_per_second: u32) {
    let mut limiter = RateLimiter::new(clients_per_second);
    let mut remaining = clients.iter();
    while remaining.len() > 0 {
        for _ in 0..limiter.next_permits().await {
            let Some(client) = remaining.next() else {
                return;
            };
            fleet.tasks.spawn_item("client", client.clone().run());
        }
    }
}

/// Publishes updates forever, one client after the other. Skips clients that still wait for the
/// PUBACK of their previous message. If all clients wait, the permits of this tick are discarded.
pub(super) async fn publish_updates(
    fleet: &Fleet,
    clients: &[Arc<Client>],
    updates_per_second: u32,
) {
    let mut limiter = RateLimiter::new(updates_per_second);
    let mut round_robin = clients.iter().cycle();
    loop {
        for _ in 0..limiter.next_permits().await {
            let free_session = round_robin.by_ref().take(clients.len()).find_map(|client| {
                let session = client.session.lock().clone()?;
                let presence_guard = session.try_lock_presence()?;
                Some((session, presence_guard))
            });
            let Some((session, presence_guard)) = free_session else {
                break;
            };
            fleet
                .tasks
                .spawn_item("publish_update", session.publish_update(presence_guard));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn limiter_grants_the_configured_rate() {
        let mut limiter = RateLimiter::new(500);
        let started_at = Instant::now();
        let mut granted = 0;
        while started_at.elapsed() < Duration::from_secs(10) {
            granted += limiter.next_permits().await;
        }
        assert!((4990..=5010).contains(&granted), "{granted}");
    }
}
