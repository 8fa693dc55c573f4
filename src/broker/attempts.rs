//! How often a client may try to connect: a bucket of attempts each, filled at a steady rate.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::domain::ClientId;

/// With this many buckets, the full ones are thrown out before another is made, and if none is full
/// nobody new may try. Without certificates the names are the peer's own invention.
const BUCKETS_MOST: usize = 100_000;

pub(super) struct Attempts {
    burst: f64,
    per_second: f64,
    buckets: Mutex<HashMap<ClientId, Bucket>>,
}

struct Bucket {
    left: f64,
    at: Instant,
}

impl Attempts {
    pub fn new(burst: u32, per_second: f64) -> Self {
        Self {
            burst: f64::from(burst),
            per_second,
            buckets: Mutex::default(),
        }
    }

    /// Whether the client may try now. Counts the attempt if so.
    pub fn take(&self, client: &ClientId) -> bool {
        let now = Instant::now();
        let mut buckets = self.buckets.lock();
        if buckets.len() >= BUCKETS_MOST && !buckets.contains_key(client) {
            buckets.retain(|_, bucket| !self.is_full(bucket, now));
            if buckets.len() >= BUCKETS_MOST {
                return false;
            }
        }
        let bucket = buckets.entry(client.clone()).or_insert(Bucket {
            left: self.burst,
            at: now,
        });
        bucket.left = self.left(bucket, now);
        bucket.at = now;
        if bucket.left < 1.0 {
            return false;
        }
        bucket.left -= 1.0;
        true
    }

    /// Forgets clients that have been calm for long enough to start over anyway.
    pub fn forget_calm(&self) {
        let now = Instant::now();
        let mut buckets = self.buckets.lock();
        buckets.retain(|_, bucket| !self.is_full(bucket, now));
        buckets.shrink_to_fit();
    }

    fn left(&self, bucket: &Bucket, now: Instant) -> f64 {
        let filled = now.duration_since(bucket.at).as_secs_f64() * self.per_second;
        (bucket.left + filled).min(self.burst)
    }

    fn is_full(&self, bucket: &Bucket, now: Instant) -> bool {
        self.left(bucket, now) >= self.burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_client_has_a_burst_and_then_its_rate_and_starves_nobody() {
        let attempts = Attempts::new(3, 0.5);
        let (a, b) = (ClientId::new("a").unwrap(), ClientId::new("b").unwrap());
        assert_eq!(
            [(); 4].map(|()| attempts.take(&a)),
            [true, true, true, false]
        );
        assert!(attempts.take(&b));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!([(); 2].map(|()| attempts.take(&a)), [true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn calm_clients_are_forgotten() {
        let attempts = Attempts::new(2, 1.0);
        let a = ClientId::new("a").unwrap();
        attempts.take(&a);
        attempts.forget_calm();
        assert_eq!(attempts.buckets.lock().len(), 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        attempts.forget_calm();
        assert!(attempts.buckets.lock().is_empty());
    }
}
