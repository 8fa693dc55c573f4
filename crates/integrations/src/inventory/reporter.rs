//! Builds the messages of hosts and sends them to inventory.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::message::{Host, InventoryMessage, ReportPolicy, build_message, is_inventory_eligible};
use super::sink::InventorySink;
use crate::metrics;
use domain::{ClientInfo, ClientKind, DialectName, Timestamp};

/// Builds inventory messages and sends them to a sink.
#[derive(Clone)]
pub struct InventoryReporter {
    /// Destination of the messages.
    pub sink: Arc<dyn InventorySink>,
    /// Settings that decide which hosts are reported and when inventory marks a host stale.
    pub policy: ReportPolicy,
    /// Maximum time to wait for the sink to confirm delivery.
    pub delivery_timeout: Duration,
}

/// Result of reporting one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportOutcome {
    /// The sink confirmed the delivery.
    Delivered,
    /// The delivery was not confirmed in time. The inventory refresh job reports the host again.
    Pending,
    /// The host was not sent, because the host is not eligible.
    NotEligible,
}

impl InventoryReporter {
    /// Returns whether inventory accepts a host with these properties.
    #[must_use]
    pub fn is_eligible(&self, dialect: &DialectName, kind: ClientKind, info: &ClientInfo) -> bool {
        is_inventory_eligible(dialect, kind, info, self.policy.include_handshake_hosts)
    }

    /// Builds the message of a host for [`Self::send`]. Returns `None` if the host is not eligible.
    #[must_use]
    pub fn build_message(&self, host: &Host<'_>, now: Timestamp) -> Option<InventoryMessage> {
        match build_message(host, now, self.policy, Uuid::new_v4()) {
            Ok(message) => Some(message),
            Err(reason) => {
                if reason.would_be_rejected() {
                    metrics::count_ineligible_host(host.client_id, reason.as_str());
                }
                None
            }
        }
    }

    /// Sends messages. Returns [`ReportOutcome::Delivered`] or [`ReportOutcome::Pending`] for each
    /// message, in the order of `messages`.
    pub async fn send(&self, messages: Vec<InventoryMessage>) -> Vec<ReportOutcome> {
        if messages.is_empty() {
            return Vec::new();
        }
        let deadline = Instant::now() + self.delivery_timeout;
        let delivery_results = self.sink.send(messages, deadline).await;
        let outcomes = delivery_results.into_iter().map(|is_delivered| {
            if is_delivered {
                ReportOutcome::Delivered
            } else {
                ReportOutcome::Pending
            }
        });
        outcomes.collect()
    }
}
