//! How often something may be done: a bucket for each who does it, filled at a steady rate.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// With this many buckets, the full ones are thrown out before another is made, and if none is full
/// nobody new may do it. Names may be anybody's invention.
const BUCKETS_MOST: usize = 100_000;

/// A bucket for each name.
pub struct RateLimiter<K> {
    burst: f64,
    per_second: f64,
    by_name: Mutex<HashMap<K, Bucket>>,
}

struct Bucket {
    left: f64,
    at: Instant,
}

impl<K: Hash + Eq> RateLimiter<K> {
    /// So many at once, and so many a second in the long run.
    #[must_use]
    pub fn new(burst: u32, per_second: f64) -> Self {
        Self {
            burst: f64::from(burst),
            per_second,
            by_name: Mutex::default(),
        }
    }

    /// Takes one out, if there is one.
    ///
    /// # Errors
    /// When there is none: how long until there is.
    pub fn take<Q>(&self, name: &Q) -> Result<(), Duration>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let now = Instant::now();
        let mut buckets = self.by_name.lock();
        if let Some(bucket) = buckets.get_mut(name) {
            bucket.left = self.left(bucket, now);
            bucket.at = now;
            return self.take_from(bucket);
        }
        if buckets.len() >= BUCKETS_MOST {
            buckets.retain(|_, bucket| !self.is_full(bucket, now));
            if buckets.len() >= BUCKETS_MOST {
                return Err(self.until(1.0));
            }
        }
        let mut bucket = Bucket {
            left: self.burst,
            at: now,
        };
        let taken = self.take_from(&mut bucket);
        buckets.insert(name.to_owned(), bucket);
        taken
    }

    /// Forgets those who have been calm for long enough to start over anyway.
    pub fn remove_idle(&self) {
        let now = Instant::now();
        let mut buckets = self.by_name.lock();
        buckets.retain(|_, bucket| !self.is_full(bucket, now));
        buckets.shrink_to_fit();
    }

    fn take_from(&self, bucket: &mut Bucket) -> Result<(), Duration> {
        if bucket.left < 1.0 {
            return Err(self.until(1.0 - bucket.left));
        }
        bucket.left -= 1.0;
        Ok(())
    }

    fn until(&self, missing: f64) -> Duration {
        Duration::try_from_secs_f64(missing / self.per_second).unwrap_or(Duration::MAX)
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

    #[tokio::test(start_paused = true)]
    async fn each_has_a_burst_and_then_its_rate_and_starves_nobody() {
        let buckets = RateLimiter::<String>::new(3, 0.5);
        let taken = [(); 4].map(|()| buckets.take("a"));
        let wait = Err(Duration::from_secs(2));
        assert_eq!(taken, [Ok(()), Ok(()), Ok(()), wait]);
        assert_eq!(buckets.take("b"), Ok(()));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!([(); 2].map(|()| buckets.take("a")), [Ok(()), wait]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_calm_are_forgotten() {
        let buckets = RateLimiter::<String>::new(2, 1.0);
        buckets.take("a").unwrap();
        buckets.remove_idle();
        assert_eq!(buckets.by_name.lock().len(), 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        buckets.remove_idle();
        assert!(buckets.by_name.lock().is_empty());
    }
}
