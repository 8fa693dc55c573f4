//! Timestamps and clocks. Code that needs the current time uses a [`Clock`], so that tests can
//! control the time.

use std::sync::Arc;
use std::time::Duration;

/// A point in time.
///
/// Both databases store microseconds, so timestamps are truncated to microseconds before they are
/// stored or compared.
pub type Timestamp = jiff::Timestamp;

/// A source of the current time.
pub trait Clock: Send + Sync + 'static {
    /// Returns the current time, truncated to microseconds.
    fn now(&self) -> Timestamp;
}

/// The clock of the operating system.
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

/// Truncates a timestamp to microseconds, so that the databases return exactly the stored value.
#[must_use]
pub fn truncate_to_micros(time: Timestamp) -> Timestamp {
    let nanos = time.as_nanosecond();
    Timestamp::from_nanosecond(nanos - nanos.rem_euclid(1000)).unwrap_or(time)
}

/// Subtracts a duration from a time. Returns the Unix epoch if the result would be before the Unix
/// epoch.
#[must_use]
pub fn saturating_sub(time: Timestamp, duration: Duration) -> Timestamp {
    let earlier_time = time.checked_sub(duration).unwrap_or(Timestamp::UNIX_EPOCH);
    earlier_time.max(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_timestamp(rfc_3339: &str) -> Timestamp {
        rfc_3339.parse().unwrap()
    }

    #[test]
    fn timestamps_are_truncated_to_microseconds() {
        assert_eq!(
            truncate_to_micros(parse_timestamp("2026-01-02T15:04:05.123456789Z")),
            parse_timestamp("2026-01-02T15:04:05.123456Z")
        );
        let latest_time = truncate_to_micros(Timestamp::MAX);
        assert_eq!(latest_time.subsec_nanosecond(), 999_999_000);
        let before_1970 = parse_timestamp("0000-01-01T00:00:00.0000015Z");
        let truncated = truncate_to_micros(before_1970);
        assert_eq!(truncated.subsec_nanosecond() % 1000, 0);
    }

    #[test]
    fn subtraction_never_returns_a_time_before_the_unix_epoch() {
        let time = parse_timestamp("2026-01-02T15:04:05Z");
        assert_eq!(
            saturating_sub(time, Duration::from_secs(5)),
            parse_timestamp("2026-01-02T15:04:00Z")
        );
        let longest_duration = Duration::from_secs(u64::MAX);
        assert_eq!(
            saturating_sub(time, longest_duration),
            Timestamp::UNIX_EPOCH
        );
    }
}
