//! Acceptance tests of tenancy. Each test runs on SQLite and on PostgreSQL. `make acceptance` runs
//! these tests.
//!
//! Most test names start with a prefix, for example `k1_`. The prefix is the item's id in the
//! tenancy acceptance list. The letter of the id is the group of items:
//!
//! - K: how the recorder handles an online message
//! - O: how the recorder handles an offline message
//! - A: what the API returns for a tenantless connection
//! - S: the inventory refresh
//! - T: the lookup of missing tenants
//! - M: the migration of a database; these tests are in `distributed/adoption.rs`
//!
//! A test without a prefix tests a behavior that is not in the list.

mod recording;
mod updaters;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::{ClientId, Clock, Identity, OrgId, Tenant, Timestamp};
use integrations::inventory::message::{InventoryMessage, ReportPolicy};
use integrations::inventory::reporter::InventoryReporter;
use integrations::inventory::sink::InventorySink;
use parking_lot::Mutex;
use tenant::{TenantLookup, TenantLookupOutcome};
use tokio::time::Instant;

use test_support::stores::TestStore;

/// Creates two tests from each test function: `sqlite::<name>` and `postgres::<name>`. A test
/// function takes an [`UpdaterFixture`].
macro_rules! each_store {
    ($($test:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test]
                async fn $test() {
                    let store = test_support::stores::open_sqlite().await;
                    super::$test(super::UpdaterFixture::new(store)).await;
                }
            )*
        }

        mod postgres {
            $(
                #[tokio::test]
                async fn $test() {
                    let store = test_support::stores::open_postgres().await;
                    super::$test(super::UpdaterFixture::new(store)).await;
                }
            )*
        }
    };
}
pub(crate) use each_store;

/// Initial time of the [`ManualClock`], in seconds since 1970.
const START_UNIX_SECONDS: i64 = 1_800_000_000;

/// Returns the time that is `seconds` after [`START_UNIX_SECONDS`].
fn timestamp_at(seconds: i64) -> Timestamp {
    Timestamp::from_second(START_UNIX_SECONDS + seconds).unwrap()
}

fn tenant(org_id: &str) -> Tenant {
    Tenant {
        org_id: OrgId::new(org_id).unwrap(),
        account: "42".into(),
    }
}

/// A fake tenant lookup that stores the client ids of all lookups. A lookup returns the outcome
/// that the test set for the client, or `Unavailable` if the test set no outcome.
#[derive(Default)]
struct FakeTenantLookup {
    outcomes_by_client_id: Mutex<HashMap<String, TenantLookupOutcome>>,
    requested_client_ids: Mutex<Vec<String>>,
}

impl FakeTenantLookup {
    fn set_outcome(&self, client_id: &str, outcome: TenantLookupOutcome) {
        self.outcomes_by_client_id
            .lock()
            .insert(client_id.to_owned(), outcome);
    }

    fn found_outcome(org_id: &str) -> TenantLookupOutcome {
        TenantLookupOutcome::from_identity(Identity::for_tenant(&tenant(org_id)))
    }
}

#[async_trait]
impl TenantLookup for FakeTenantLookup {
    async fn lookup(&self, client: &ClientId, _: Instant) -> TenantLookupOutcome {
        self.requested_client_ids.lock().push(client.to_string());
        let outcomes = self.outcomes_by_client_id.lock();
        outcomes
            .get(client.as_str())
            .cloned()
            .unwrap_or(TenantLookupOutcome::Unavailable)
    }

    async fn check_availability(&self) -> Result<String, String> {
        Ok(String::new())
    }
}

/// A fake inventory that stores all received messages. While `is_unavailable` is true, the fake
/// inventory rejects all messages.
#[derive(Default)]
struct FakeInventory {
    messages: Mutex<Vec<serde_json::Value>>,
    is_unavailable: Mutex<bool>,
}

#[async_trait]
impl InventorySink for FakeInventory {
    async fn send(&self, messages: Vec<InventoryMessage>, _: Instant) -> Vec<bool> {
        let is_unavailable = *self.is_unavailable.lock();
        if !is_unavailable {
            let parse = |message: &InventoryMessage| serde_json::from_slice(&message.json).unwrap();
            self.messages.lock().extend(messages.iter().map(parse));
        }
        vec![!is_unavailable; messages.len()]
    }
}

/// A clock whose time changes only when the test advances the clock.
struct ManualClock(Mutex<Timestamp>);

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}

/// A real store, and fakes of the other components that the updaters use.
struct UpdaterFixture {
    test_store: TestStore,
    tenant_lookup: Arc<FakeTenantLookup>,
    inventory: Arc<FakeInventory>,
    clock: Arc<ManualClock>,
}

impl UpdaterFixture {
    fn new(test_store: TestStore) -> Self {
        Self {
            test_store,
            tenant_lookup: Arc::default(),
            inventory: Arc::default(),
            clock: Arc::new(ManualClock(Mutex::new(timestamp_at(0)))),
        }
    }

    fn inventory_reporter(&self) -> InventoryReporter {
        InventoryReporter {
            sink: self.inventory.clone(),
            policy: ReportPolicy {
                stale_after: Duration::from_hours(26),
                include_handshake_hosts: true,
            },
            delivery_timeout: Duration::from_secs(5),
        }
    }

    fn advance_clock(&self, seconds: i64) {
        *self.clock.0.lock() += jiff::SignedDuration::from_secs(seconds);
    }
}
