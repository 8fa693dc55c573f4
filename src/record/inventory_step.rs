//! Telling inventory of the hosts of a batch: once a batch, however often it is tried to be written.

use std::collections::{HashMap, HashSet};

use super::presence::ResolvedOnline;
use crate::domain::{ClientId, Timestamp};
use crate::integrations::inventory::message::Host;
use crate::integrations::inventory::reporter::{InventoryReporter, ReportOutcome};
use crate::integrations::sources::{SourceRegistrar, source_of};
use crate::tenant::FoundTenant;

/// What inventory has heard of a batch, over all the attempts to write it: the client, and which
/// event made it known.
#[derive(Default)]
pub(super) struct ReportedHosts {
    heard: HashMap<(ClientId, usize), Timestamp>,
    registered: HashSet<(ClientId, usize)>,
}

/// A host that has arrived, and who it is.
#[derive(Clone, Copy)]
pub(super) struct ConnectedHost<'a> {
    pub client: &'a ClientId,
    pub settled: &'a ResolvedOnline,
    pub found: &'a FoundTenant,
}

impl ReportedHosts {
    /// When inventory heard of what this event says of the client.
    pub fn at(&self, client: &ClientId, event: usize) -> Option<Timestamp> {
        self.heard.get(&(client.clone(), event)).copied()
    }

    /// Has those that are catalog proxies registered. What does not get through is counted there.
    pub fn register(&mut self, registrar: &SourceRegistrar, arrived: &[ConnectedHost<'_>]) {
        for ConnectedHost {
            client,
            settled,
            found,
        } in arrived
        {
            let online = &settled.online;
            let source = source_of(client, settled.dialect, online.kind, &online.reported);
            if let Some(source) = source
                && self.registered.insert(((*client).clone(), settled.event))
            {
                registrar.try_register(&found.identity, source, client);
            }
        }
    }

    /// Tells inventory of those that it has not heard of yet, and notes who was heard.
    pub async fn tell(
        &mut self,
        announcer: &InventoryReporter,
        arrived: impl Iterator<Item = ConnectedHost<'_>>,
        now: Timestamp,
    ) {
        let new: Vec<ConnectedHost<'_>> = arrived
            .filter(|new| self.at(new.client, new.settled.event).is_none())
            .collect();
        let hosts: Vec<Host<'_>> = new
            .iter()
            .map(|arrived| Host {
                client_id: arrived.client,
                tenant: &arrived.found.tenant,
                identity: &arrived.found.identity,
                dialect: arrived.settled.dialect,
                kind: arrived.settled.online.kind,
                reported: &arrived.settled.online.reported,
            })
            .collect();
        let told = announcer.tell(&hosts, now).await;
        for (arrived, told) in new.iter().zip(told) {
            if told == ReportOutcome::Delivered {
                let heard = (arrived.client.clone(), arrived.settled.event);
                self.heard.insert(heard, now);
            }
        }
    }
}
