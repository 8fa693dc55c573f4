//! The acceptance list of tenancy. Each test name starts with the id of its item, and each test
//! runs on SQLite and on PostgreSQL. `make acceptance` runs only these tests. The items M1 to M3,
//! about migration, are in `distributed/adoption.rs`.

mod recording;
mod updaters;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cloud_connector::domain::{ClientId, Clock, Identity, OrgId, Tenant, Timestamp};
use cloud_connector::integrations::inventory::message::{InventoryMessage, ReportPolicy};
use cloud_connector::integrations::inventory::reporter::InventoryReporter;
use cloud_connector::integrations::inventory::sink::InventorySink;
use cloud_connector::tenant::{TenantLookup, TenantLookupOutcome};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::store_contract::TestStore;

/// Creates two tests from each test function: `sqlite::<name>` and `postgres::<name>`. A test
/// function takes an [`UpdaterFixture`].
macro_rules! each_store {
    ($($test:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test]
                async fn $test() {
                    let store = crate::store_contract::open_sqlite().await;
                    super::$test(super::UpdaterFixture::new(store)).await;
                }
            )*
        }

        #[cfg(feature = "external-services")]
        mod postgres {
            $(
                #[tokio::test]
                async fn $test() {
                    let store = crate::store_contract::open_postgres().await;
                    super::$test(super::UpdaterFixture::new(store)).await;
                }
            )*
        }
    };
}
pub(crate) use each_store;

/// Initial time of the fixture's clock, in seconds since 1970.
const START_TIME: i64 = 1_800_000_000;

/// Time `seconds` after [`START_TIME`].
fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(START_TIME + seconds).unwrap()
}

fn client_id(name: &str) -> ClientId {
    ClientId::new(name).unwrap()
}

fn tenant(org_id: &str) -> Tenant {
    Tenant {
        org_id: OrgId::new(org_id).unwrap(),
        account: "42".into(),
    }
}

/// A tenant lookup that returns the outcomes that the test sets, and records its calls. Clients
/// without a set outcome get `Unavailable`.
#[derive(Default)]
struct FakeTenantLookup {
    outcomes: Mutex<HashMap<String, TenantLookupOutcome>>,
    requested_clients: Mutex<Vec<String>>,
}

impl FakeTenantLookup {
    fn set_outcome(&self, client_id: &str, outcome: TenantLookupOutcome) {
        self.outcomes.lock().insert(client_id.to_owned(), outcome);
    }

    fn found(org_id: &str) -> TenantLookupOutcome {
        TenantLookupOutcome::from_identity(Identity::for_tenant(&tenant(org_id)))
    }
}

#[async_trait]
impl TenantLookup for FakeTenantLookup {
    async fn lookup(&self, client: &ClientId, _: Instant) -> TenantLookupOutcome {
        self.requested_clients.lock().push(client.to_string());
        let outcomes = self.outcomes.lock();
        outcomes
            .get(client.as_str())
            .cloned()
            .unwrap_or(TenantLookupOutcome::Unavailable)
    }

    async fn check(&self) -> Result<String, String> {
        Ok(String::new())
    }
}

/// An inventory that stores the messages it receives. While unavailable, it accepts none.
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
            let parse =
                |message: &InventoryMessage| serde_json::from_slice(&message.value).unwrap();
            self.messages.lock().extend(messages.iter().map(parse));
        }
        vec![!is_unavailable; messages.len()]
    }
}

/// A clock that only the test advances.
struct FixedClock(Mutex<Timestamp>);

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}

/// A real store, with fakes for everything else that the updaters use.
struct UpdaterFixture {
    test_store: TestStore,
    tenant_lookup: Arc<FakeTenantLookup>,
    inventory: Arc<FakeInventory>,
    clock: Arc<FixedClock>,
}

impl UpdaterFixture {
    fn new(test_store: TestStore) -> Self {
        Self {
            test_store,
            tenant_lookup: Arc::default(),
            inventory: Arc::default(),
            clock: Arc::new(FixedClock(Mutex::new(at(0)))),
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
