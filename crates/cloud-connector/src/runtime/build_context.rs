//! What the components of a process are built from.

use std::path::Path;
use std::sync::Arc;

use super::roles::{Role, Roles};
use super::shutdown_order::Stages;
use crate::config::Config;
use delivery::PendingResponses;
use domain::Clock;
use protocol::TopicScheme;
use service::ByteBudget;
use store::Repositories;
use tenant::TenantLookup;

/// Maximum memory of all messages between the broker and the database, including the buffers of the
/// Kafka clients.
pub(super) const MESSAGE_BUDGET_BYTES: usize = 128 * 1024 * 1024;

/// Settings and shared values that the components of a process are built from.
pub(super) struct BuildContext<'a> {
    pub config: &'a Config,
    pub roles: &'a Roles,
    pub clock: Arc<dyn Clock>,
    pub topics: TopicScheme,
    pub repositories: &'a Repositories,
    /// Path of the data folder. `None` if the database is PostgreSQL.
    pub data_dir: Option<&'a Path>,
    pub tenant_lookup: Arc<dyn TenantLookup>,
    /// Requests of API callers that wait for the response of a client.
    pub responses: PendingResponses,
    /// Limits the memory of all queued messages of the process.
    pub message_budget: ByteBudget,
    pub stages: &'a Stages,
}

impl BuildContext<'_> {
    /// Returns whether this process has the role.
    pub fn has_role(&self, role: Role) -> bool {
        self.roles.contains(role)
    }
}
