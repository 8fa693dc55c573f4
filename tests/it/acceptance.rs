//! The acceptance list of tenancy: a test a line, named by its id, on every store. `make acceptance`
//! runs just these. Lines about migration are in `adoption.rs`.

mod recording;
mod updating;

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

/// Makes a test of each case, for each store. A case takes a [`UpdaterFixture`].
macro_rules! on_every_store {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test]
                async fn $case() {
                    let subject = crate::store_contract::sqlite().await;
                    super::$case(super::UpdaterFixture::new(subject)).await;
                }
            )*
        }

        #[cfg(feature = "external-services")]
        mod postgres {
            $(
                #[tokio::test]
                async fn $case() {
                    let subject = crate::store_contract::postgres().await;
                    super::$case(super::UpdaterFixture::new(subject)).await;
                }
            )*
        }
    };
}
pub(crate) use on_every_store;

const NOW: i64 = 1_800_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(NOW + second).unwrap()
}

fn client(name: &str) -> ClientId {
    ClientId::new(name).unwrap()
}

fn tenant(org: &str) -> Tenant {
    Tenant {
        org_id: OrgId::new(org).unwrap(),
        account: "42".into(),
    }
}

/// GatewayReply what a test wants said, and counts.
#[derive(Default)]
struct FakeTenantLookup {
    answers: Mutex<HashMap<String, TenantLookupOutcome>>,
    asked: Mutex<Vec<String>>,
}

impl FakeTenantLookup {
    fn answer(&self, name: &str, lookup: TenantLookupOutcome) {
        self.answers.lock().insert(name.to_owned(), lookup);
    }

    fn found(org: &str) -> TenantLookupOutcome {
        TenantLookupOutcome::of(Identity::made_for(&tenant(org)))
    }
}

#[async_trait]
impl TenantLookup for FakeTenantLookup {
    async fn lookup(&self, client: &ClientId, _: Instant) -> TenantLookupOutcome {
        self.asked.lock().push(client.to_string());
        let answers = self.answers.lock();
        answers
            .get(client.as_str())
            .cloned()
            .unwrap_or(TenantLookupOutcome::Unavailable)
    }

    async fn probe(&self) -> Result<String, String> {
        Ok(String::new())
    }
}

/// Hears what inventory is told, unless it is away.
#[derive(Default)]
struct FakeInventory {
    heard: Mutex<Vec<serde_json::Value>>,
    is_away: Mutex<bool>,
}

#[async_trait]
impl InventorySink for FakeInventory {
    async fn send(&self, announcements: Vec<InventoryMessage>, _: Instant) -> Vec<bool> {
        let away = *self.is_away.lock();
        if !away {
            let read = |a: &InventoryMessage| serde_json::from_slice(&a.value).unwrap();
            self.heard.lock().extend(announcements.iter().map(read));
        }
        vec![!away; announcements.len()]
    }
}

struct FixedClock(Mutex<Timestamp>);

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}

/// A store, and everything around it in the test's hand.
struct UpdaterFixture {
    subject: crate::store_contract::Deployment,
    script: Arc<FakeTenantLookup>,
    ear: Arc<FakeInventory>,
    clock: Arc<FixedClock>,
}

impl UpdaterFixture {
    fn new(subject: crate::store_contract::Deployment) -> Self {
        Self {
            subject,
            script: Arc::default(),
            ear: Arc::default(),
            clock: Arc::new(FixedClock(Mutex::new(at(0)))),
        }
    }

    fn announcer(&self) -> InventoryReporter {
        InventoryReporter {
            outlet: self.ear.clone(),
            terms: ReportPolicy {
                stale_after: Duration::from_hours(26),
                include_handshake_hosts: true,
            },
            within: Duration::from_secs(5),
        }
    }

    fn later(&self, seconds: i64) {
        *self.clock.0.lock() += jiff::SignedDuration::from_secs(seconds);
    }
}
