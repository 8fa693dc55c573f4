//! Limits a repeated log message to one line per key and interval, for example per client.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Allows at most one log line per key and interval, and counts the suppressed lines.
#[derive(Debug)]
pub struct LogLimiter<K> {
    interval: Duration,
    /// Maximum number of keys, and thereby of log lines in one interval.
    max_keys: usize,
    entries: Mutex<HashMap<K, Entry>>,
}

#[derive(Debug)]
struct Entry {
    last_line_at: Instant,
    suppressed_lines: u64,
}

impl<K: Hash + Eq + Clone> LogLimiter<K> {
    /// Creates a limiter that allows the first line of each key. If `max_keys` keys had a line within
    /// the last interval, the lines of further keys are suppressed.
    #[must_use]
    pub fn new(interval: Duration, max_keys: usize) -> Self {
        Self {
            interval,
            max_keys,
            entries: Mutex::default(),
        }
    }

    /// Returns the number of suppressed lines since the last line of this key, if a line may be
    /// written now. Otherwise counts a suppressed line and returns `None`.
    pub fn suppressed_if_due(&self, key: &K) -> Option<u64> {
        let now = Instant::now();
        let is_due = |entry: &Entry| now - entry.last_line_at >= self.interval;
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(key) {
            if !is_due(entry) {
                entry.suppressed_lines += 1;
                return None;
            }
            entry.last_line_at = now;
            return Some(std::mem::take(&mut entry.suppressed_lines));
        }
        if entries.len() >= self.max_keys {
            entries.retain(|_, entry| !is_due(entry));
            if entries.len() >= self.max_keys {
                return None;
            }
        }
        let entry = Entry {
            last_line_at: now,
            suppressed_lines: 0,
        };
        entries.insert(key.clone(), entry);
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn each_key_has_one_line_per_interval_with_the_number_of_suppressed_lines() {
        let limiter = LogLimiter::new(INTERVAL, 10);
        assert_eq!(limiter.suppressed_if_due(&"a"), Some(0));
        assert_eq!(limiter.suppressed_if_due(&"a"), None);
        assert_eq!(limiter.suppressed_if_due(&"a"), None);
        assert_eq!(limiter.suppressed_if_due(&"b"), Some(0));
        tokio::time::advance(INTERVAL).await;
        assert_eq!(limiter.suppressed_if_due(&"a"), Some(2));
        tokio::time::advance(INTERVAL).await;
        assert_eq!(limiter.suppressed_if_due(&"a"), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_limit_further_keys_have_no_line_until_the_interval_ends() {
        let limiter = LogLimiter::new(INTERVAL, 2);
        assert_eq!(limiter.suppressed_if_due(&1), Some(0));
        assert_eq!(limiter.suppressed_if_due(&2), Some(0));
        assert_eq!(limiter.suppressed_if_due(&3), None);
        tokio::time::advance(INTERVAL).await;
        assert_eq!(limiter.suppressed_if_due(&3), Some(0));
        assert_eq!(limiter.entries.lock().len(), 1);
    }
}
