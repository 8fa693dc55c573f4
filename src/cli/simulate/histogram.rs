//! Delivery long things took: a histogram of a fixed size, whatever is put into it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Each power of two is cut into this many buckets, so a value is known to 3 %.
const PARTS_BITS: u32 = 5;
const PARTS: usize = 1 << PARTS_BITS;
/// Microseconds up to the end of u64.
const BUCKETS: usize = (65 - PARTS_BITS as usize) * PARTS;

pub(super) struct Histogram {
    buckets: Box<[AtomicU64]>,
    longest: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            longest: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    pub fn add(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket(micros)].fetch_add(1, Ordering::Relaxed);
        self.longest.fetch_max(micros, Ordering::Relaxed);
    }

    /// What this share of the values does not exceed; none if there are no values.
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        let counts: Vec<u64> = self
            .buckets
            .iter()
            .map(|bucket| bucket.load(Ordering::Relaxed))
            .collect();
        let total: u64 = counts.iter().sum();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a count is a count"
        )]
        let wanted = ((total as f64 * share).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        let found = counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        let longest = self.longest.load(Ordering::Relaxed);
        Some(Duration::from_micros(upper(found).min(longest)))
    }

    pub fn longest(&self) -> Option<Duration> {
        self.percentile(1.0)
    }
}

/// Small values have a bucket each; above, the power of two and the first bits behind it tell.
fn bucket(value: u64) -> usize {
    let power = value.max(1).ilog2();
    let shift = power.saturating_sub(PARTS_BITS);
    let within = usize::try_from(value >> shift).unwrap_or(usize::MAX);
    shift as usize * PARTS + within
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    let shift = (bucket / PARTS).saturating_sub(1);
    let within = (bucket - shift * PARTS) as u128;
    u64::try_from(((within + 1) << shift) - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_a_bucket_that_is_near_it() {
        for value in [
            0,
            1,
            31,
            32,
            33,
            63,
            64,
            1000,
            123_456,
            u64::MAX / 2,
            u64::MAX,
        ] {
            let found = bucket(value);
            assert!(found < BUCKETS, "{value}");
            let upper = upper(found);
            assert!(upper >= value, "{value}: {upper}");
            assert!(
                (upper - value) as f64 <= value as f64 / 30.0,
                "{value}: {upper}"
            );
        }
    }

    #[test]
    fn percentiles_of_one_to_a_thousand() {
        let histogram = Histogram::default();
        for millis in 1..=1000 {
            histogram.add(Duration::from_millis(millis));
        }
        for (share, expected) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0)] {
            let found = histogram.percentile(share).unwrap().as_secs_f64() * 1000.0;
            assert!(
                (found - expected).abs() <= expected * 0.035,
                "{share}: {found}"
            );
        }
        assert_eq!(histogram.longest(), Some(Duration::from_secs(1)));
    }

    #[test]
    fn nothing_has_no_percentile() {
        assert_eq!(Histogram::default().percentile(0.5), None);
    }
}
