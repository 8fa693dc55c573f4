//! How long to wait before connecting again.

use std::time::Duration;

use uuid::Uuid;

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(10);

/// Ever longer pauses, each up to half shorter by chance, so that many who lost the same broker do
/// not all come back at the same moment.
#[derive(Debug, Clone, Default)]
pub struct Backoff {
    last: Option<Duration>,
}

impl Backoff {
    /// Starts over.
    pub fn reset(&mut self) {
        self.last = None;
    }

    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let pause = self.last.map_or(FIRST, |last| (last * 2).min(LONGEST));
        self.last = Some(pause);
        pause / 2 + (pause / 2).mul_f64(chance())
    }
}

/// Between 0 and 1. A random UUID is random enough to spread clients.
fn chance() -> f64 {
    let (random, _) = Uuid::new_v4().as_u64_pair();
    (random >> 32) as f64 / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_start_over() {
        let mut backoff = Backoff::default();
        let mut bound = FIRST;
        for _ in 0..12 {
            let pause = backoff.pause();
            assert!(pause >= bound / 2 && pause <= bound, "{pause:?} {bound:?}");
            bound = (bound * 2).min(LONGEST);
        }
        backoff.reset();
        assert!(backoff.pause() <= FIRST);
    }
}
