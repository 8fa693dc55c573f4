//! Telling inventory of hosts, many at a time.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::inventory::{Host, Terms, announcement, can_be_announced};
use super::outlet::Outlet;
use crate::domain::{Dialect, Kind, Reported, Timestamp};
use crate::telemetry::metrics;

/// How to tell inventory.
#[derive(Clone)]
pub struct Announcer {
    /// The way there.
    pub outlet: Arc<dyn Outlet>,
    /// What is said.
    pub terms: Terms,
    /// How long the delivery is waited for.
    pub within: Duration,
}

/// What became of telling inventory of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// It was delivered.
    Delivered,
    /// It was not, or not in time: it is owed.
    Owed,
    /// Inventory would refuse it, or does not care: nothing is owed.
    NotForInventory,
}

impl Announcer {
    /// Whether inventory would take such a host.
    #[must_use]
    pub fn would_take(&self, dialect: Dialect, kind: Kind, reported: &Reported) -> bool {
        can_be_announced(dialect, kind, reported, self.terms.handshake_hosts)
    }

    /// Tells inventory of these hosts, and says of each what became of it.
    pub async fn tell(&self, hosts: &[Host<'_>], now: Timestamp) -> Vec<Told> {
        let mut told = vec![Told::NotForInventory; hosts.len()];
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
                Told::Delivered
            } else {
                Told::Owed
            };
        }
        told
    }
}
