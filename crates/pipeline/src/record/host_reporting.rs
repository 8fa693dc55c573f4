//! Reports the connected hosts of a batch to inventory and to the sources service. Each host is
//! reported once per batch, even if the recorder retries the batch.

use std::collections::{HashMap, HashSet};

use super::presence::AppliedOnlineMessage;
use domain::{ClientId, Timestamp};
use integrations::inventory::message::Host;
use integrations::inventory::reporter::{InventoryReporter, ReportOutcome};
use integrations::sources::{SourceRegistrar, catalog_source};
use tenant::FoundTenant;

/// The hosts of a batch that were already reported. A retry of the batch does not report these
/// hosts again.
///
/// A host is identified by its client id and the index of its online message in the batch's inputs.
#[derive(Default)]
pub(super) struct ReportedHosts {
    /// For each reported host, the time at which its data was delivered to inventory.
    inventory_delivered_at: HashMap<(ClientId, usize), Timestamp>,
    /// The hosts that are not eligible for inventory. They are counted once.
    ineligible_hosts: HashSet<(ClientId, usize)>,
    hosts_with_registered_source: HashSet<(ClientId, usize)>,
}

/// A client that sent an online message and whose tenant was found.
#[derive(Clone, Copy)]
pub(super) struct ConnectedHost<'a> {
    pub client: &'a ClientId,
    pub applied_message: &'a AppliedOnlineMessage,
    pub found_tenant: &'a FoundTenant,
}

impl ReportedHosts {
    /// Returns the time at which the data of this online message was delivered to inventory.
    /// Returns `None` if the data was not delivered.
    pub fn inventory_delivery_time(
        &self,
        client: &ClientId,
        input_index: usize,
    ) -> Option<Timestamp> {
        self.inventory_delivered_at
            .get(&(client.clone(), input_index))
            .copied()
    }

    /// Registers the catalog proxies in `hosts` with the sources service. Returns no error, because
    /// the registrar counts failures.
    pub fn register_sources(&mut self, registrar: &SourceRegistrar, hosts: &[ConnectedHost<'_>]) {
        for ConnectedHost {
            client,
            applied_message,
            found_tenant,
        } in hosts
        {
            let online = &applied_message.online;
            let dialect = &applied_message.dialect;
            let source = catalog_source(client, dialect, online.kind, &online.info);
            let host_key = ((*client).clone(), applied_message.input_index);
            if let Some(source) = source
                && self.hosts_with_registered_source.insert(host_key)
            {
                registrar.try_register(&found_tenant.identity, source, client);
            }
        }
    }

    /// Reports a host to inventory unless its data was already delivered, or the host is not eligible.
    pub async fn report_to_inventory(
        &mut self,
        reporter: &InventoryReporter,
        mut hosts: Vec<ConnectedHost<'_>>,
        now: Timestamp,
    ) {
        hosts.retain(|host| {
            let input_index = host.applied_message.input_index;
            self.inventory_delivery_time(host.client, input_index)
                .is_none()
                && (self.ineligible_hosts.is_empty()
                    || !self
                        .ineligible_hosts
                        .contains(&(host.client.clone(), input_index)))
        });
        let inventory_hosts: Vec<Host<'_>> = hosts
            .iter()
            .map(|host| Host {
                client_id: host.client,
                tenant: &host.found_tenant.tenant,
                identity: &host.found_tenant.identity,
                dialect: &host.applied_message.dialect,
                kind: host.applied_message.online.kind,
                info: &host.applied_message.online.info,
            })
            .collect();
        let outcomes = reporter.report(&inventory_hosts, now).await;
        for (host, outcome) in hosts.iter().zip(outcomes) {
            let host_key = (host.client.clone(), host.applied_message.input_index);
            match outcome {
                ReportOutcome::Delivered => {
                    self.inventory_delivered_at.insert(host_key, now);
                }
                ReportOutcome::NotEligible => {
                    self.ineligible_hosts.insert(host_key);
                }
                ReportOutcome::Pending => {}
            }
        }
    }
}
