//! Reports the connected hosts of a batch to inventory and to the sources service. Each host is
//! reported once per batch, even if writing the batch is retried.

use std::collections::{HashMap, HashSet};

use super::presence::ResolvedOnline;
use crate::domain::{ClientId, Timestamp};
use crate::integrations::inventory::message::Host;
use crate::integrations::inventory::reporter::{InventoryReporter, ReportOutcome};
use crate::integrations::sources::{SourceRegistrar, catalog_source};
use crate::tenant::FoundTenant;

/// Hosts that were already reported in an earlier attempt to write the same batch. The key is the
/// client and the index of its online message in the batch's inputs.
#[derive(Default)]
pub(super) struct ReportedHosts {
    /// When inventory received the host.
    delivered: HashMap<(ClientId, usize), Timestamp>,
    registered_sources: HashSet<(ClientId, usize)>,
}

/// A client that sent an online message and whose tenant was found.
#[derive(Clone, Copy)]
pub(super) struct ConnectedHost<'a> {
    pub client: &'a ClientId,
    pub resolved: &'a ResolvedOnline,
    pub found: &'a FoundTenant,
}

impl ReportedHosts {
    /// When inventory received the client's data from this online message.
    pub fn reported_at(&self, client: &ClientId, input_index: usize) -> Option<Timestamp> {
        self.delivered.get(&(client.clone(), input_index)).copied()
    }

    /// Registers the catalog proxies among the hosts. The registrar counts failures.
    pub fn register_sources(&mut self, registrar: &SourceRegistrar, hosts: &[ConnectedHost<'_>]) {
        for ConnectedHost {
            client,
            resolved,
            found,
        } in hosts
        {
            let online = &resolved.online;
            let source = catalog_source(client, resolved.dialect, online.kind, &online.info);
            let key = ((*client).clone(), resolved.input_index);
            if let Some(source) = source
                && self.registered_sources.insert(key)
            {
                registrar.try_register(&found.identity, source, client);
            }
        }
    }

    /// Reports the hosts that inventory has not received yet.
    pub async fn report(
        &mut self,
        reporter: &InventoryReporter,
        mut hosts: Vec<ConnectedHost<'_>>,
        now: Timestamp,
    ) {
        hosts.retain(|host| {
            self.reported_at(host.client, host.resolved.input_index)
                .is_none()
        });
        let inventory_hosts: Vec<Host<'_>> = hosts
            .iter()
            .map(|host| Host {
                client_id: host.client,
                tenant: &host.found.tenant,
                identity: &host.found.identity,
                dialect: host.resolved.dialect,
                kind: host.resolved.online.kind,
                info: &host.resolved.online.info,
            })
            .collect();
        let outcomes = reporter.report(&inventory_hosts, now).await;
        for (host, outcome) in hosts.iter().zip(outcomes) {
            if outcome == ReportOutcome::Delivered {
                let key = (host.client.clone(), host.resolved.input_index);
                self.delivered.insert(key, now);
            }
        }
    }
}
