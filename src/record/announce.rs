//! Telling inventory of the hosts of a batch: once a batch, however often it is tried to be written.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::fold::Settled;
use crate::domain::{ClientId, Timestamp};
use crate::platform::inventory::{Host, Terms, announcement, can_be_announced};
use crate::platform::outlet::{Outlet, by};
use crate::telemetry::metrics;
use crate::tenant::Found;

/// How to tell inventory.
#[derive(Clone)]
pub struct Announcer {
    /// The way there.
    pub outlet: Arc<dyn Outlet>,
    /// What is said.
    pub terms: Terms,
    /// How long a batch waits for the delivery.
    pub within: Duration,
}

/// What inventory has heard of a batch, over all the attempts to write it: the client, and which
/// event made it known.
#[derive(Default)]
pub(super) struct Told(HashMap<(ClientId, usize), Timestamp>);

/// A host that has arrived, and who it is.
pub(super) struct Arrived<'a> {
    pub client: &'a ClientId,
    pub settled: &'a Settled,
    pub found: &'a Found,
}

impl Told {
    /// When inventory heard of what this event says of the client.
    pub fn at(&self, client: &ClientId, event: usize) -> Option<Timestamp> {
        self.0.get(&(client.clone(), event)).copied()
    }
}

impl Announcer {
    /// Whether inventory would take such a host.
    pub(super) fn would_take(&self, settled: &Settled) -> bool {
        let online = &settled.online;
        can_be_announced(
            settled.dialect,
            online.kind,
            &online.reported,
            self.terms.handshake_hosts,
        )
    }

    /// Tells inventory of those that it has not heard of yet, and notes who was heard.
    pub(super) async fn tell(
        &self,
        arrived: impl Iterator<Item = Arrived<'_>>,
        told: &mut Told,
        now: Timestamp,
    ) {
        let mut whom = Vec::new();
        let mut announcements = Vec::new();
        for Arrived {
            client,
            settled,
            found,
        } in arrived
        {
            if told.at(client, settled.event).is_some() {
                continue;
            }
            let host = Host {
                client_id: client,
                tenant: &found.tenant,
                identity: &found.identity,
                dialect: settled.dialect,
                kind: settled.online.kind,
                reported: &settled.online.reported,
            };
            match announcement(&host, now, self.terms, Uuid::new_v4()) {
                Ok(announcement) => {
                    whom.push((client.clone(), settled.event));
                    announcements.push(announcement);
                }
                Err(why) if why.is_refusal() => metrics::not_announced(client, why.label()),
                Err(_) => {}
            }
        }
        if announcements.is_empty() {
            return;
        }
        let delivered = self.outlet.send(announcements, by(self.within)).await;
        for (whom, heard) in whom.into_iter().zip(delivered) {
            if heard {
                told.0.insert(whom, now);
            }
        }
    }
}
