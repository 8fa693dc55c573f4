//! Telling inventory of hosts, many at a time.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::message::{Host, ReportPolicy, announcement, inventory_eligible};
use super::sink::InventorySink;
use crate::domain::{ClientInfo, ClientKind, Dialect, Timestamp};
use crate::telemetry::metrics;

/// How to tell inventory.
#[derive(Clone)]
pub struct InventoryReporter {
    /// The way there.
    pub outlet: Arc<dyn InventorySink>,
    /// What is said.
    pub terms: ReportPolicy,
    /// How long the delivery is waited for.
    pub within: Duration,
}

/// What became of telling inventory of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportOutcome {
    /// It was delivered.
    Delivered,
    /// It was not, or not in time: it is owed.
    Pending,
    /// Inventory would refuse it, or does not care: nothing is owed.
    NotEligible,
}

impl InventoryReporter {
    /// Whether inventory would take such a host.
    #[must_use]
    pub fn is_eligible(&self, dialect: Dialect, kind: ClientKind, reported: &ClientInfo) -> bool {
        inventory_eligible(dialect, kind, reported, self.terms.include_handshake_hosts)
    }

    /// Tells inventory of these hosts, and says of each what became of it.
    pub async fn tell(&self, hosts: &[Host<'_>], now: Timestamp) -> Vec<ReportOutcome> {
        let mut told = vec![ReportOutcome::NotEligible; hosts.len()];
        let mut sent = Vec::new();
        let mut announcements = Vec::new();
        for (at, host) in hosts.iter().enumerate() {
            match announcement(host, now, self.terms, Uuid::new_v4()) {
                Ok(announcement) => {
                    sent.push(at);
                    announcements.push(announcement);
                }
                Err(why) if why.is_refusal() => {
                    metrics::not_announced(host.client_id, why.label());
                }
                Err(_) => {}
            }
        }
        if announcements.is_empty() {
            return told;
        }
        let deadline = Instant::now() + self.within;
        let delivered = self.outlet.send(announcements, deadline).await;
        for (at, delivered) in sent.into_iter().zip(delivered) {
            told[at] = if delivered {
                ReportOutcome::Delivered
            } else {
                ReportOutcome::Pending
            };
        }
        told
    }
}
