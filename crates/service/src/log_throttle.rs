//! Limits a repeated log message to about one line per second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Allows at most one log line per second. Each log message needs its own `static` throttle.
#[derive(Debug, Default)]
pub struct LogThrottle {
    /// Unix time of the latest call of `should_log`, rounded down to seconds.
    last_call_second: AtomicU64,
}

impl LogThrottle {
    /// Creates a throttle that allows the first line.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            last_call_second: AtomicU64::new(0),
        }
    }

    /// Returns true for the first call in each second of wall-clock time.
    pub fn should_log(&self) -> bool {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let current_second = since_epoch.map_or(0, |elapsed| elapsed.as_secs());
        self.last_call_second
            .swap(current_second, Ordering::Relaxed)
            != current_second
    }
}
