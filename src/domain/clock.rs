//! Time as an argument: whoever needs "now" is given a clock, so that tests can hold it.

use std::sync::Arc;

/// A moment. Stores keep microseconds, so that is the resolution everything is compared at.
pub type Timestamp = jiff::Timestamp;

/// Where "now" comes from.
pub trait Clock: Send + Sync + 'static {
    /// The present moment, cut to microseconds.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        truncate_to_micros(Timestamp::now())
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// Cuts a moment to what both databases can keep, so that a value reads back as it was written.
#[must_use]
pub fn truncate_to_micros(at: Timestamp) -> Timestamp {
    let nanos = at.as_nanosecond();
    Timestamp::from_nanosecond(nanos - nanos.rem_euclid(1000)).unwrap_or(at)
}

/// So long before a moment; never before 1970, when nothing of ours was there.
#[must_use]
pub fn before(at: Timestamp, span: std::time::Duration) -> Timestamp {
    let earlier = at.checked_sub(span).unwrap_or(Timestamp::UNIX_EPOCH);
    earlier.max(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_cut_to_what_the_stores_keep() {
        let fine: Timestamp = "2026-01-02T15:04:05.123456789Z".parse().unwrap();
        assert_eq!(
            truncate_to_micros(fine).to_string(),
            "2026-01-02T15:04:05.123456Z"
        );
        let last = truncate_to_micros(Timestamp::MAX);
        assert_eq!(last.subsec_nanosecond(), 999_999_000);
        let long = std::time::Duration::from_secs(u64::MAX);
        assert_eq!(before(fine, long), Timestamp::UNIX_EPOCH);
        let early: Timestamp = "0000-01-01T00:00:00.0000015Z".parse().unwrap();
        assert_eq!(truncate_to_micros(early).subsec_nanosecond() % 1000, 0);
    }
}
