//! The acceptance list of tenancy: a test a line, named by its id, on every store. `make acceptance`
//! runs just these. Lines about migration are in `adoption.rs`.

mod recording;
mod updating;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cloud_connector::domain::{ClientId, Clock, Identity, OrgId, Tenant, Timestamp};
use cloud_connector::platform::announcer::Announcer;
use cloud_connector::platform::inventory::{Announcement, Terms};
use cloud_connector::platform::outlet::Outlet;
use cloud_connector::tenant::{Lookup, Tenants};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Makes a test of each case, for each store. A case takes a [`Scene`].
macro_rules! on_every_store {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test]
                async fn $case() {
                    let subject = crate::store_contract::sqlite().await;
                    super::$case(super::Scene::new(subject)).await;
                }
            )*
        }

        #[cfg(feature = "outside-tests")]
        mod postgres {
            $(
                #[tokio::test]
                async fn $case() {
                    let subject = crate::store_contract::postgres().await;
                    super::$case(super::Scene::new(subject)).await;
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

/// Says what a test wants said, and counts.
#[derive(Default)]
struct Script {
    answers: Mutex<HashMap<String, Lookup>>,
    asked: Mutex<Vec<String>>,
}

impl Script {
    fn answer(&self, name: &str, lookup: Lookup) {
        self.answers.lock().insert(name.to_owned(), lookup);
    }

    fn found(org: &str) -> Lookup {
        Lookup::of(Identity::made_for(&tenant(org)))
    }
}

#[async_trait]
impl Tenants for Script {
    async fn lookup(&self, client: &ClientId, _: Instant) -> Lookup {
        self.asked.lock().push(client.to_string());
        let answers = self.answers.lock();
        answers
            .get(client.as_str())
            .cloned()
            .unwrap_or(Lookup::Unavailable)
    }

    async fn probe(&self) -> Result<String, String> {
        Ok(String::new())
    }
}

/// Hears what inventory is told, unless it is away.
#[derive(Default)]
struct Ear {
    heard: Mutex<Vec<serde_json::Value>>,
    is_away: Mutex<bool>,
}

#[async_trait]
impl Outlet for Ear {
    async fn send(&self, announcements: Vec<Announcement>, _: Instant) -> Vec<bool> {
        let away = *self.is_away.lock();
        if !away {
            let read = |a: &Announcement| serde_json::from_slice(&a.value).unwrap();
            self.heard.lock().extend(announcements.iter().map(read));
        }
        vec![!away; announcements.len()]
    }
}

struct Still(Mutex<Timestamp>);

impl Clock for Still {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}

/// A store, and everything around it in the test's hand.
struct Scene {
    subject: crate::store_contract::Subject,
    script: Arc<Script>,
    ear: Arc<Ear>,
    clock: Arc<Still>,
}

impl Scene {
    fn new(subject: crate::store_contract::Subject) -> Self {
        Self {
            subject,
            script: Arc::default(),
            ear: Arc::default(),
            clock: Arc::new(Still(Mutex::new(at(0)))),
        }
    }

    fn announcer(&self) -> Announcer {
        Announcer {
            outlet: self.ear.clone(),
            terms: Terms {
                stale_after: Duration::from_hours(26),
                handshake_hosts: true,
            },
            within: Duration::from_secs(5),
        }
    }

    fn later(&self, seconds: i64) {
        *self.clock.0.lock() += jiff::SignedDuration::from_secs(seconds);
    }
}
