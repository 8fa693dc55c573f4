//! A lock-free histogram of durations with a fixed memory size.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Each range between two powers of two is divided into 2^5 = 32 buckets. Therefore the relative
/// error is at most 3 %.
const SUB_BUCKET_BITS: u32 = 5;
const SUB_BUCKETS: usize = 1 << SUB_BUCKET_BITS;
/// Number of buckets that covers all `u64` values.
const BUCKET_COUNT: usize = (65 - SUB_BUCKET_BITS as usize) * SUB_BUCKETS;

pub(super) struct Histogram {
    buckets: Box<[AtomicU64]>,
    max_micros: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: (0..BUCKET_COUNT).map(|_| AtomicU64::new(0)).collect(),
            max_micros: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    pub fn record(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket_index(micros)].fetch_add(1, Ordering::Relaxed);
        self.max_micros.fetch_max(micros, Ordering::Relaxed);
    }

    /// Returns the duration at this quantile (0.0 to 1.0), or `None` if the histogram is empty.
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let counts: Vec<u64> = self
            .buckets
            .iter()
            .map(|bucket| bucket.load(Ordering::Relaxed))
            .collect();
        let total: u64 = counts.iter().sum();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a fraction of a count fits into a count"
        )]
        let rank = ((total as f64 * quantile).ceil() as u64).clamp(1, total.max(1));
        let mut cumulative = 0;
        let index = counts.iter().position(|count| {
            cumulative += count;
            cumulative >= rank
        })?;
        let max = self.max_micros.load(Ordering::Relaxed);
        Some(Duration::from_micros(bucket_upper_bound(index).min(max)))
    }

    /// Returns the longest recorded duration, or `None` if the histogram is empty.
    pub fn max(&self) -> Option<Duration> {
        self.quantile(1.0)
    }
}

/// Returns the bucket of a value. Each value below 64 has its own bucket. Two larger values share a
/// bucket if they have the same number of bits and the same six leading bits.
fn bucket_index(value: u64) -> usize {
    let power = value.max(1).ilog2();
    let shift = power.saturating_sub(SUB_BUCKET_BITS);
    let sub_bucket = usize::try_from(value >> shift).unwrap_or(usize::MAX);
    shift as usize * SUB_BUCKETS + sub_bucket
}

/// Returns the largest value that belongs to the bucket.
fn bucket_upper_bound(index: usize) -> u64 {
    let shift = (index / SUB_BUCKETS).saturating_sub(1);
    let sub_bucket = (index - shift * SUB_BUCKETS) as u128;
    u64::try_from(((sub_bucket + 1) << shift) - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upper_bound_of_a_bucket_exceeds_a_value_by_at_most_a_thirtieth() {
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
            let index = bucket_index(value);
            assert!(index < BUCKET_COUNT, "{value}");
            let bound = bucket_upper_bound(index);
            assert!(bound >= value, "{value}: {bound}");
            assert!(
                (bound - value) as f64 <= value as f64 / 30.0,
                "{value}: {bound}"
            );
        }
    }

    #[test]
    fn quantiles_differ_from_the_exact_values_by_at_most_4_percent() {
        let histogram = Histogram::default();
        for millis in 1..=1000 {
            histogram.record(Duration::from_millis(millis));
        }
        for (quantile, expected) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0)] {
            let millis = histogram.quantile(quantile).unwrap().as_secs_f64() * 1000.0;
            assert!(
                (millis - expected).abs() <= expected * 0.035,
                "{quantile}: {millis}"
            );
        }
        assert_eq!(histogram.max(), Some(Duration::from_secs(1)));
    }

    #[test]
    fn an_empty_histogram_has_no_quantiles() {
        assert_eq!(Histogram::default().quantile(0.5), None);
    }
}
