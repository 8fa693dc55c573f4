//! Reports the connected hosts of a batch to inventory and to the sources service. Each host is
//! reported once per batch, even if the recorder retries the batch.

use std::collections::{HashMap, HashSet};

use super::presence::AppliedOnlineMessage;
use crate::domain::{ClientId, Timestamp};
use crate::integrations::inventory::message::Host;
use crate::integrations::inventory::reporter::{InventoryReporter, ReportOutcome};
use crate::integrations::sources::{SourceRegistrar, catalog_source};
use crate::tenant::FoundTenant;

/// The hosts of a batch that were already reported. A retry of the batch does not report these
/// hosts again.
///
/// A host is identified by its client id and the index of its online message in the batch's inputs.
#[derive(Default)]
pub(super) struct ReportedHosts {
    /// When each host was delivered to inventory.
    delivered_at: HashMap<(ClientId, usize), Timestamp>,
    registered_sources: HashSet<(ClientId, usize)>,
}

/// A client that sent an online message and whose tenant was found.
#[derive(Clone, Copy)]
pub(super) struct ConnectedHost<'a> {
    pub client: &'a ClientId,
    pub applied_online: &'a AppliedOnlineMessage,
    pub found_tenant: &'a FoundTenant,
}

impl ReportedHosts {
    /// Returns when the data of this online message was delivered to inventory. Returns `None` if
    /// the data was not delivered.
    pub fn inventory_reported_at(
        &self,
        client: &ClientId,
        input_index: usize,
    ) -> Option<Timestamp> {
        self.delivered_at
            .get(&(client.clone(), input_index))
            .copied()
    }

    /// Registers those hosts that are catalog proxies with the sources service. The registrar
    /// counts failures.
    pub fn register_sources(&mut self, registrar: &SourceRegistrar, hosts: &[ConnectedHost<'_>]) {
        for ConnectedHost {
            client,
            applied_online,
            found_tenant,
        } in hosts
        {
            let online = &applied_online.online;
            let source = catalog_source(client, applied_online.dialect, online.kind, &online.info);
            let host_key = ((*client).clone(), applied_online.input_index);
            if let Some(source) = source
                && self.registered_sources.insert(host_key)
            {
                registrar.try_register(&found_tenant.identity, source, client);
            }
        }
    }

    /// Reports those hosts to inventory that were not delivered yet.
    pub async fn report_to_inventory(
        &mut self,
        reporter: &InventoryReporter,
        mut hosts: Vec<ConnectedHost<'_>>,
        now: Timestamp,
    ) {
        hosts.retain(|host| {
            self.inventory_reported_at(host.client, host.applied_online.input_index)
                .is_none()
        });
        let inventory_hosts: Vec<Host<'_>> = hosts
            .iter()
            .map(|host| Host {
                client_id: host.client,
                tenant: &host.found_tenant.tenant,
                identity: &host.found_tenant.identity,
                dialect: host.applied_online.dialect,
                kind: host.applied_online.online.kind,
                info: &host.applied_online.online.info,
            })
            .collect();
        let outcomes = reporter.report(&inventory_hosts, now).await;
        for (host, outcome) in hosts.iter().zip(outcomes) {
            if outcome == ReportOutcome::Delivered {
                let host_key = (host.client.clone(), host.applied_online.input_index);
                self.delivered_at.insert(host_key, now);
            }
        }
    }
}
