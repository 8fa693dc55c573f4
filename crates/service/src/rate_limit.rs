//! Keyed token-bucket rate limiting: every key has its own bucket, which refills at a constant
//! rate.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum number of buckets in memory. Keys can come from untrusted input, so the number of
/// buckets must be bounded. At the limit, the limiter removes full buckets. If no bucket is full,
/// the limiter rejects new keys.
const MAX_BUCKETS: usize = 100_000;

/// A rate limiter with one token bucket per key.
pub struct RateLimiter<K> {
    max_tokens_per_bucket: f64,
    tokens_per_second: f64,
    buckets: Mutex<HashMap<K, Bucket>>,
}

struct Bucket {
    /// Number of tokens in the bucket at the time `updated_at`.
    tokens: f64,
    updated_at: Instant,
}

impl<K: Hash + Eq> RateLimiter<K> {
    /// Creates a limiter. For each key, the limiter allows `burst` requests at once, and
    /// `per_second` requests per second on average.
    #[must_use]
    pub fn new(burst: u32, per_second: f64) -> Self {
        Self {
            max_tokens_per_bucket: f64::from(burst),
            tokens_per_second: per_second,
            buckets: Mutex::default(),
        }
    }

    /// Takes one token from the key's bucket.
    ///
    /// # Errors
    /// When the bucket is empty, or when the key is new and the limiter already has the maximum
    /// number of buckets. The error is the time to wait before a retry.
    pub fn take_token<Q>(&self, key: &Q) -> Result<(), Duration>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let now = Instant::now();
        let mut buckets = self.buckets.lock();
        if let Some(bucket) = buckets.get_mut(key) {
            bucket.tokens = self.tokens_at(bucket, now);
            bucket.updated_at = now;
            return self.take_token_from(bucket);
        }
        if buckets.len() >= MAX_BUCKETS {
            buckets.retain(|_, bucket| !self.is_full(bucket, now));
            if buckets.len() >= MAX_BUCKETS {
                return Err(self.refill_time(1.0));
            }
        }
        let mut bucket = Bucket {
            tokens: self.max_tokens_per_bucket,
            updated_at: now,
        };
        let result = self.take_token_from(&mut bucket);
        buckets.insert(key.to_owned(), bucket);
        result
    }

    /// Returns the number of buckets in memory.
    #[must_use]
    pub fn bucket_count(&self) -> usize {
        self.buckets.lock().len()
    }

    /// Removes full buckets, to save memory. Removing a full bucket changes no result, because a
    /// new bucket is also full.
    pub fn remove_full_buckets(&self) {
        let now = Instant::now();
        let mut buckets = self.buckets.lock();
        buckets.retain(|_, bucket| !self.is_full(bucket, now));
        buckets.shrink_to_fit();
    }

    fn take_token_from(&self, bucket: &mut Bucket) -> Result<(), Duration> {
        if bucket.tokens < 1.0 {
            return Err(self.refill_time(1.0 - bucket.tokens));
        }
        bucket.tokens -= 1.0;
        Ok(())
    }

    fn refill_time(&self, tokens: f64) -> Duration {
        Duration::try_from_secs_f64(tokens / self.tokens_per_second).unwrap_or(Duration::MAX)
    }

    fn tokens_at(&self, bucket: &Bucket, now: Instant) -> f64 {
        let refilled_tokens =
            now.duration_since(bucket.updated_at).as_secs_f64() * self.tokens_per_second;
        (bucket.tokens + refilled_tokens).min(self.max_tokens_per_bucket)
    }

    fn is_full(&self, bucket: &Bucket, now: Instant) -> bool {
        self.tokens_at(bucket, now) >= self.max_tokens_per_bucket
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_key_has_its_own_bucket_that_refills_over_time() {
        let limiter = RateLimiter::<String>::new(3, 0.5);
        let results = [(); 4].map(|()| limiter.take_token("a"));
        let rejection = Err(Duration::from_secs(2));
        assert_eq!(results, [Ok(()), Ok(()), Ok(()), rejection]);
        assert_eq!(limiter.take_token("b"), Ok(()));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(
            [(); 2].map(|()| limiter.take_token("a")),
            [Ok(()), rejection]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn remove_full_buckets_keeps_buckets_that_are_not_full() {
        let limiter = RateLimiter::<String>::new(2, 1.0);
        limiter.take_token("a").unwrap();
        limiter.remove_full_buckets();
        assert_eq!(limiter.bucket_count(), 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        limiter.remove_full_buckets();
        assert_eq!(limiter.bucket_count(), 0);
    }
}
