//! Reports the hosts of a chunk to inventory, with a bounded amount of memory.
//!
//! The facts of 2,000 hosts can need gigabytes. The facts of a host are therefore read after its
//! lookup, converted to a message and dropped before the facts of the next host are read. The
//! messages are sent when they reach [`MAX_UNSENT_BYTES`].

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use domain::{ClientId, Timestamp};
use integrations::inventory::message::{Host, InventoryMessage};
use integrations::inventory::reporter::{InventoryReporter, ReportOutcome};
use store::{ClientDetails, LookupQueueRepository, StoreError};
use tenant::{FoundTenant, TenantLookupOutcome};

use super::LookedUpRows;

/// Size of the messages at which they are sent.
const MAX_UNSENT_BYTES: usize = 8 * 1024 * 1024;
/// Maximum number of clients per query. Reading the facts of a host can need milliseconds, and a
/// query has a deadline.
const MAX_QUERY_CLIENTS: usize = 500;

/// Reports the hosts whose lookup found a tenant. Returns one entry per row of `looked_up_rows`. The
/// entry is `None` if the row was not reported, because it has no tenant or has changed after its
/// claim.
///
/// # Errors
/// If the database is unavailable.
pub(super) async fn report_to_inventory(
    inventory: &InventoryReporter,
    lookup_queue: &dyn LookupQueueRepository,
    looked_up_rows: &LookedUpRows,
    now: Timestamp,
) -> Result<Vec<Option<ReportOutcome>>, StoreError> {
    let mut reports = ChunkReports {
        inventory,
        now,
        outcomes: vec![None; looked_up_rows.len()],
        unsent: Vec::new(),
        unsent_bytes: 0,
        is_unavailable: false,
    };
    let mut hosts = Vec::new();
    for (index, (row, outcome)) in looked_up_rows.iter().enumerate() {
        if let TenantLookupOutcome::Found(found_tenant) = outcome {
            let host = FoundHost {
                index,
                found_tenant,
                row_version: row.row_version,
            };
            hosts.push((&row.client_id, host));
        }
    }
    for hosts in hosts.chunks(MAX_QUERY_CLIENTS) {
        let unread_hosts = hosts.iter().copied().collect();
        reports.report_hosts(lookup_queue, unread_hosts).await?;
    }
    reports.send().await;
    Ok(reports.outcomes)
}

/// A host whose lookup found a tenant.
#[derive(Clone, Copy)]
struct FoundHost<'a> {
    /// Index of the row in the chunk.
    index: usize,
    found_tenant: &'a FoundTenant,
    /// Version of the row at the time of the claim.
    row_version: Timestamp,
}

/// The reports of a chunk.
struct ChunkReports<'a> {
    inventory: &'a InventoryReporter,
    now: Timestamp,
    /// One entry per row of the chunk.
    outcomes: Vec<Option<ReportOutcome>>,
    /// Messages that were not sent yet, with the indexes of their rows.
    unsent: Vec<(usize, InventoryMessage)>,
    unsent_bytes: usize,
    /// Whether inventory has confirmed none of the messages that were sent last.
    is_unavailable: bool,
}

impl ChunkReports<'_> {
    async fn report_hosts(
        &mut self,
        lookup_queue: &dyn LookupQueueRepository,
        mut unread_hosts: BTreeMap<&ClientId, FoundHost<'_>>,
    ) -> Result<(), StoreError> {
        loop {
            if self.is_unavailable {
                // Each attempt would wait for the timeout, and the claims could end before the
                // results are saved.
                for host in unread_hosts.values() {
                    self.outcomes[host.index] = Some(ReportOutcome::Pending);
                }
                return Ok(());
            }
            let clients: Vec<ClientId> = unread_hosts.keys().copied().cloned().collect();
            let mut visit = |details: ClientDetails| {
                if let Some(host) = unread_hosts.remove(&details.client_id) {
                    self.add_report(host, &details);
                }
                if self.is_full() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            lookup_queue
                .visit_client_details(&clients, &mut visit)
                .await?;
            if !self.is_full() {
                // The rows that were not read have been deleted.
                return Ok(());
            }
            self.send().await;
            if unread_hosts.is_empty() {
                return Ok(());
            }
        }
    }

    fn is_full(&self) -> bool {
        self.unsent_bytes >= MAX_UNSENT_BYTES
    }

    /// Builds the message of a host. Skips a row that has changed after its claim, because the lookup
    /// result may be outdated and is not saved.
    fn add_report(&mut self, host: FoundHost<'_>, details: &ClientDetails) {
        if details.row_version != host.row_version {
            return;
        }
        let reported_host = Host {
            client_id: &details.client_id,
            tenant: &host.found_tenant.tenant,
            identity: &host.found_tenant.identity,
            dialect: &details.dialect,
            kind: details.kind,
            info: &details.info,
        };
        match self.inventory.build_message(&reported_host, self.now) {
            Some(message) => {
                self.unsent_bytes += message.json.len();
                self.unsent.push((host.index, message));
            }
            None => self.outcomes[host.index] = Some(ReportOutcome::NotEligible),
        }
    }

    /// Sends the messages that were not sent yet.
    async fn send(&mut self) {
        if self.unsent.is_empty() {
            return;
        }
        let (indexes, messages): (Vec<usize>, Vec<InventoryMessage>) =
            std::mem::take(&mut self.unsent).into_iter().unzip();
        self.unsent_bytes = 0;
        let outcomes = self.inventory.send(messages).await;
        self.is_unavailable = !outcomes.contains(&ReportOutcome::Delivered);
        for (index, outcome) in indexes.into_iter().zip(outcomes) {
            self.outcomes[index] = Some(outcome);
        }
    }
}
