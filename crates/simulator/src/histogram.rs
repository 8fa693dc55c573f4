//! A histogram of durations with a fixed memory size.

use std::time::Duration;

use hdrhistogram::Histogram as HdrHistogram;
use parking_lot::Mutex;

/// Quantiles count longer durations as one hour.
const MAX_QUANTILE_MICROS: u64 = 60 * 60 * 1_000_000;
/// With three digits, the relative error is at most 0.1 %, and a histogram needs 188 kB.
const SIGNIFICANT_DIGITS: u8 = 3;

pub(super) struct Histogram(Mutex<RecordedDurations>);

struct RecordedDurations {
    micros: HdrHistogram<u64>,
    /// The exact maximum. `HdrHistogram` rounds its maximum up.
    max: Option<Duration>,
}

impl Default for Histogram {
    fn default() -> Self {
        let micros = HdrHistogram::new_with_max(MAX_QUANTILE_MICROS, SIGNIFICANT_DIGITS)
            .expect("the arguments are constants within the documented limits");
        Self(Mutex::new(RecordedDurations { micros, max: None }))
    }
}

impl Histogram {
    pub fn record(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let mut recorded = self.0.lock();
        recorded.micros.saturating_record(micros);
        recorded.max = recorded.max.max(Some(duration));
    }

    /// Returns the duration at this quantile (0.0 to 1.0), or `None` if the histogram is empty.
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let recorded = self.0.lock();
        let micros = recorded.micros.value_at_quantile(quantile);
        Some(Duration::from_micros(micros).min(recorded.max?))
    }

    /// Returns the longest recorded duration, or `None` if the histogram is empty.
    pub fn max(&self) -> Option<Duration> {
        self.0.lock().max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_differ_from_the_exact_values_by_at_most_a_thousandth() {
        let histogram = Histogram::default();
        for millis in 1..=1000 {
            histogram.record(Duration::from_millis(millis));
        }
        for (quantile, expected) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0)] {
            let millis = histogram.quantile(quantile).unwrap().as_secs_f64() * 1000.0;
            assert!(
                (millis - expected).abs() <= expected * 0.001,
                "{quantile}: {millis}"
            );
        }
        assert_eq!(histogram.max(), Some(Duration::from_secs(1)));
        assert_eq!(histogram.quantile(1.0), histogram.max());
    }

    #[test]
    fn quantiles_count_durations_longer_than_an_hour_as_an_hour() {
        let histogram = Histogram::default();
        histogram.record(Duration::MAX);
        assert_eq!(histogram.max(), Some(Duration::MAX));
        let median = histogram.quantile(0.5).unwrap().as_secs_f64();
        assert!((median - 3600.0).abs() <= 3.6, "{median}");
    }

    #[test]
    fn an_empty_histogram_has_no_quantiles() {
        assert_eq!(Histogram::default().quantile(0.5), None);
    }
}
