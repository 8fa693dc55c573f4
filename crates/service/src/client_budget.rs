//! Budgets in messages and bytes for each client, so that one client cannot use the capacity of
//! others.
//!
//! A budget is a pair of token buckets, one for messages and one for bytes. A charge can make the
//! balance of a bucket negative: the client is then over its budget until the bucket has refilled.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::{BuildHasher as _, Hash};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;

use crate::settings::InvalidValue;

/// Maximum number of budgets in memory. A budget of a client that has sent nothing for a while is
/// full and can be removed. At the limit, clients without a budget are not limited.
const MAX_BUDGETS: usize = 262_144;
/// Minimum time between two removals of full budgets, because a removal visits all budgets.
const MIN_REMOVAL_INTERVAL: Duration = Duration::from_secs(1);

/// Settings of the section `[client_budget]`.
#[allow(missing_docs, reason = "config.default.toml documents every setting")]
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientBudgetSettings {
    pub messages_per_second: u32,
    pub message_burst: u32,
    pub bytes_per_second: u32,
    pub byte_burst: u32,
}

impl ClientBudgetSettings {
    /// Checks values that have the right type but are not allowed.
    ///
    /// # Errors
    /// When a value is not allowed. Only the first problem is reported.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        let values = [
            (
                "client_budget.messages_per_second",
                self.messages_per_second,
            ),
            ("client_budget.message_burst", self.message_burst),
            ("client_budget.bytes_per_second", self.bytes_per_second),
            ("client_budget.byte_burst", self.byte_burst),
        ];
        for (setting_name, value) in values {
            if value == 0 {
                return Err(InvalidValue::new(
                    setting_name,
                    "0 would delay all messages without end",
                    "set it to 1 or more; a large number, such as 1000000000, disables the limit",
                ));
            }
        }
        Ok(())
    }
}

/// The budgets of all clients.
pub struct ClientBudgets {
    settings: ClientBudgetSettings,
    hasher: RandomState,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The key is the hash of the client. Two clients with the same hash share a budget.
    budgets: HashMap<u64, Budget>,
    last_removal: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Budget {
    messages: f64,
    bytes: f64,
    updated_at: Instant,
}

impl ClientBudgets {
    /// Creates the budgets. Each client starts with a full budget.
    #[must_use]
    pub fn new(settings: ClientBudgetSettings) -> Self {
        Self {
            settings,
            hasher: RandomState::new(),
            inner: Mutex::default(),
        }
    }

    /// Charges a message to the client's budget. Returns the time until the client is within its
    /// budget again, which is zero if the budget covers the message.
    pub fn charge<K: Hash + ?Sized>(&self, client: &K, bytes: usize) -> Duration {
        self.update(client, |budget, settings| {
            budget.messages -= 1.0;
            budget.bytes -= bytes as f64;
            budget.time_until_within(settings)
        })
        .unwrap_or(Duration::ZERO)
    }

    /// Charges a message if the client's budget covers the message. Returns false, without a
    /// charge, if it does not.
    pub fn try_charge<K: Hash + ?Sized>(&self, client: &K, bytes: usize) -> bool {
        self.update(client, |budget, _| {
            let covers_message = budget.messages >= 1.0 && budget.bytes >= bytes as f64;
            if covers_message {
                budget.messages -= 1.0;
                budget.bytes -= bytes as f64;
            }
            covers_message
        })
        .unwrap_or(true)
    }

    /// Returns whether the client is within its budget.
    pub fn is_within<K: Hash + ?Sized>(&self, client: &K) -> bool {
        self.time_until_within(client).is_zero()
    }

    /// Returns the time until the client is within its budget, if nothing is charged until then.
    pub fn time_until_within<K: Hash + ?Sized>(&self, client: &K) -> Duration {
        let inner = self.inner.lock();
        let budget = inner.budgets.get(&self.hasher.hash_one(client));
        budget.map_or(Duration::ZERO, |budget| {
            let refilled = budget.refilled(&self.settings, Instant::now());
            refilled.time_until_within(&self.settings)
        })
    }

    /// Removes full budgets, to save memory. Removing a full budget changes no result, because a
    /// new budget is also full.
    pub fn remove_full_budgets(&self) {
        let mut inner = self.inner.lock();
        inner.remove_full_budgets(&self.settings, Instant::now());
        inner.budgets.shrink_to_fit();
    }

    /// Refills the client's budget and calls `update` with it. Returns `None`, without the call, if
    /// the client is not limited because too many budgets are in memory.
    fn update<K: Hash + ?Sized, T>(
        &self,
        client: &K,
        update: impl FnOnce(&mut Budget, &ClientBudgetSettings) -> T,
    ) -> Option<T> {
        let now = Instant::now();
        let hash = self.hasher.hash_one(client);
        let mut inner = self.inner.lock();
        if inner.budgets.len() >= MAX_BUDGETS && !inner.budgets.contains_key(&hash) {
            if inner
                .last_removal
                .is_some_and(|last| now - last < MIN_REMOVAL_INTERVAL)
            {
                return None;
            }
            inner.remove_full_budgets(&self.settings, now);
            if inner.budgets.len() >= MAX_BUDGETS {
                return None;
            }
        }
        let budget = match inner.budgets.entry(hash) {
            Entry::Occupied(entry) => {
                let budget = entry.into_mut();
                *budget = budget.refilled(&self.settings, now);
                budget
            }
            Entry::Vacant(entry) => entry.insert(Budget::full(&self.settings, now)),
        };
        Some(update(budget, &self.settings))
    }
}

impl Inner {
    fn remove_full_budgets(&mut self, settings: &ClientBudgetSettings, now: Instant) {
        self.last_removal = Some(now);
        self.budgets
            .retain(|_, budget| !budget.refilled(settings, now).is_full(settings));
    }
}

impl Budget {
    fn full(settings: &ClientBudgetSettings, now: Instant) -> Self {
        Self {
            messages: f64::from(settings.message_burst),
            bytes: f64::from(settings.byte_burst),
            updated_at: now,
        }
    }

    fn is_full(&self, settings: &ClientBudgetSettings) -> bool {
        self.messages >= f64::from(settings.message_burst)
            && self.bytes >= f64::from(settings.byte_burst)
    }

    fn refilled(self, settings: &ClientBudgetSettings, now: Instant) -> Self {
        let elapsed = now.duration_since(self.updated_at).as_secs_f64();
        let refill = |balance: f64, per_second: u32, burst: u32| {
            (balance + elapsed * f64::from(per_second)).min(f64::from(burst))
        };
        Self {
            messages: refill(
                self.messages,
                settings.messages_per_second,
                settings.message_burst,
            ),
            bytes: refill(self.bytes, settings.bytes_per_second, settings.byte_burst),
            updated_at: now,
        }
    }

    fn time_until_within(&self, settings: &ClientBudgetSettings) -> Duration {
        let refill_time = |balance: f64, per_second: u32| {
            let seconds = (-balance).max(0.0) / f64::from(per_second);
            Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
        };
        refill_time(self.messages, settings.messages_per_second)
            .max(refill_time(self.bytes, settings.bytes_per_second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: ClientBudgetSettings = ClientBudgetSettings {
        messages_per_second: 2,
        message_burst: 3,
        bytes_per_second: 100,
        byte_burst: 1000,
    };

    #[tokio::test(start_paused = true)]
    async fn a_client_over_its_message_budget_waits_until_the_budget_has_refilled() {
        let budgets = ClientBudgets::new(SETTINGS);
        let waits = [(); 5].map(|()| budgets.charge("a", 0).as_millis());
        assert_eq!(waits, [0, 0, 0, 500, 1000]);
        assert!(!budgets.is_within("a"));
        assert_eq!(budgets.time_until_within("a").as_millis(), 1000);
        assert!(budgets.is_within("b"));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(budgets.is_within("a"));
        assert_eq!(budgets.charge("a", 0).as_millis(), 500);
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_have_a_budget_of_their_own() {
        let budgets = ClientBudgets::new(SETTINGS);
        assert_eq!(budgets.charge("a", 1000), Duration::ZERO);
        assert_eq!(budgets.charge("a", 50).as_millis(), 500);
        assert_eq!(budgets.charge("b", 10), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_the_budget_does_not_cover_is_not_charged() {
        let budgets = ClientBudgets::new(SETTINGS);
        assert!(!budgets.try_charge("a", 1001));
        assert_eq!(
            [(); 4].map(|()| budgets.try_charge("a", 1)),
            [true, true, true, false]
        );
        tokio::time::advance(Duration::from_millis(500)).await;
        assert!(budgets.try_charge("a", 1));
    }

    #[tokio::test(start_paused = true)]
    async fn only_full_budgets_are_removed() {
        let budgets = ClientBudgets::new(SETTINGS);
        budgets.charge("a", 0);
        budgets.remove_full_budgets();
        assert_eq!(budgets.inner.lock().budgets.len(), 1);
        tokio::time::advance(Duration::from_millis(500)).await;
        budgets.remove_full_budgets();
        assert!(budgets.inner.lock().budgets.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_limit_new_clients_are_not_limited_until_budgets_are_removed() {
        let budgets = ClientBudgets::new(SETTINGS);
        for client in 0..MAX_BUDGETS {
            budgets.charge(&client, 0);
        }
        for _ in 0..10 {
            assert_eq!(budgets.charge("new", 0), Duration::ZERO);
        }
        tokio::time::advance(MIN_REMOVAL_INTERVAL).await;
        let waits = [(); 4].map(|()| budgets.charge("new", 0).as_millis());
        assert_eq!(waits, [0, 0, 0, 500]);
    }
}
