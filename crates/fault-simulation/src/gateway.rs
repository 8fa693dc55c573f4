//! A simulated certificate gateway, which knows the tenants of the clients and has outages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};

use crate::options::Plant;
use crate::process::Process;
use crate::world::World;
use domain::{ClientId, Identity, OrgId, Tenant};
use tenant::{Gateway, TenantLookupOutcome};

/// What the gateway knows of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TenantTruth {
    /// The client has this organization at any time.
    Org(u64),
    /// The client has no organization.
    None,
    /// The client has this organization after a time since the start of the schedule.
    OrgAfter(u64, Duration),
}

impl TenantTruth {
    /// Returns the organization that the client has at the end of the schedule.
    pub fn final_tenant(self) -> Option<Tenant> {
        let (Self::Org(number) | Self::OrgAfter(number, _)) = self else {
            return None;
        };
        Some(Tenant {
            org_id: OrgId::new(&format!("org-{number}")).ok()?,
            account: format!("account-{number}"),
        })
    }
}

/// How the gateway behaves during an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatewayOutage {
    /// Every request fails.
    Fails,
    /// No request gets a response.
    Hangs,
    /// A request fails with a probability of one half.
    Flaky,
}

/// The gateway.
pub struct GatewayState {
    world: Arc<World>,
    tenants: BTreeMap<String, TenantTruth>,
    outage: Mutex<Option<(GatewayOutage, Instant)>>,
}

impl GatewayState {
    pub fn new(world: &Arc<World>, tenants: BTreeMap<String, TenantTruth>) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            tenants,
            outage: Mutex::default(),
        })
    }

    pub fn start_outage(&self, outage: GatewayOutage, duration: Duration) {
        *self.outage.lock() = Some((outage, Instant::now() + duration));
    }

    pub fn heal(&self) {
        *self.outage.lock() = None;
    }

    fn outage(&self) -> Option<(GatewayOutage, Instant)> {
        let outage = *self.outage.lock();
        outage.filter(|(_, end)| Instant::now() < *end)
    }

    async fn respond(&self, client: &ClientId) -> TenantLookupOutcome {
        sleep(self.world.network_delay()).await;
        self.world.count("tenant lookups");
        if self.outage().is_some() {
            self.world.count("tenant lookups in an outage");
        }
        match self.outage() {
            Some((GatewayOutage::Fails, _)) => return TenantLookupOutcome::Unavailable,
            Some((GatewayOutage::Hangs, end)) => sleep_until(end).await,
            Some((GatewayOutage::Flaky, _)) if self.world.chance(50) => {
                return TenantLookupOutcome::Unavailable;
            }
            _ => {}
        }
        sleep(self.world.network_delay()).await;
        let truth = self.tenants.get(client.as_str()).copied();
        let is_known = match truth {
            Some(TenantTruth::OrgAfter(_, time)) => self.world.elapsed() >= time,
            _ => true,
        };
        let tenant = truth
            .filter(|_| is_known)
            .and_then(TenantTruth::final_tenant);
        match tenant {
            Some(tenant) => TenantLookupOutcome::from_identity(Identity::for_tenant(&tenant)),
            None => TenantLookupOutcome::NotFound,
        }
    }
}

/// The gateway as one process sees it.
pub struct ProcessGateway {
    pub gateway: Arc<GatewayState>,
    pub process: Arc<Process>,
    pub plant: Option<Plant>,
}

#[async_trait]
impl Gateway for ProcessGateway {
    async fn lookup(&self, client: &ClientId) -> TenantLookupOutcome {
        self.process.fault_point().await;
        let outcome = self.gateway.respond(client).await;
        let world = &self.process.world;
        let text = format!("the gateway responds: {:?}", outcome.status());
        world.trace(Some(client.as_str()), text);
        self.process.fault_point().await;
        match outcome {
            TenantLookupOutcome::Unavailable if self.plant == Some(Plant::OutageAsNotFound) => {
                TenantLookupOutcome::NotFound
            }
            outcome => outcome,
        }
    }

    fn url(&self) -> &'static str {
        "the simulated gateway"
    }
}
