//! Delays between connection attempts.

use std::time::Duration;

const INITIAL_BACKOFF_DELAY: Duration = Duration::from_millis(250);
const MAX_BACKOFF_DELAY: Duration = Duration::from_secs(10);

/// Exponential back-off with jitter. Without jitter, all clients would reconnect at the same time
/// after a restart of the broker.
#[derive(Debug, Clone, Default)]
pub struct Backoff {
    last_delay: Option<Duration>,
}

impl Backoff {
    /// Sets the next delay to the initial delay.
    pub fn reset(&mut self) {
        self.last_delay = None;
    }

    /// Returns the next delay. The delay doubles with each call, up to a maximum. The returned
    /// delay is shortened by a random amount of up to one half.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.last_delay.map_or(INITIAL_BACKOFF_DELAY, |last| {
            (last * 2).min(MAX_BACKOFF_DELAY)
        });
        self.last_delay = Some(delay);
        delay / 2 + (delay / 2).mul_f64(fastrand::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum_and_reset_restores_the_initial_delay() {
        let mut backoff = Backoff::default();
        let mut longest = INITIAL_BACKOFF_DELAY;
        for _ in 0..12 {
            let delay = backoff.next_delay();
            assert!(
                delay >= longest / 2 && delay <= longest,
                "{delay:?} is not between half of {longest:?} and {longest:?}"
            );
            longest = (longest * 2).min(MAX_BACKOFF_DELAY);
        }
        backoff.reset();
        assert!(backoff.next_delay() <= INITIAL_BACKOFF_DELAY);
    }
}
