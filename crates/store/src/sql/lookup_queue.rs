//! [`LookupQueueRepository`] of a SQL database.

use async_trait::async_trait;

use domain::{ClientId, Timestamp};

use super::{Access, ColumnReader as _, SqlDatabase, fetch_optional, row};
use crate::error::Result;
use crate::lookup_queue::{
    ClaimedConnection, LookupOutcome, LookupQueueRepository, LookupReason, LookupResult,
    TenantlessClient, TenantlessCounts,
};

#[async_trait]
impl<D: SqlDatabase> LookupQueueRepository for D {
    async fn claim_for_lookup(
        &self,
        reason: LookupReason,
        limit: u32,
        claims_ended_before: Timestamp,
        claim_until: Timestamp,
    ) -> Result<Vec<ClaimedConnection>> {
        let query = match reason {
            LookupReason::InventoryRefresh { reported_before } => {
                self.statements().claim_for_inventory_refresh.with([
                    reported_before.into(),
                    claims_ended_before.into(),
                    limit.into(),
                    claim_until.into(),
                ])
            }
            LookupReason::MissingTenant {
                looked_up_before,
                max_attempts,
            } => self.statements().claim_for_missing_tenant.with([
                looked_up_before.into(),
                claims_ended_before.into(),
                max_attempts.into(),
                limit.into(),
                claim_until.into(),
            ]),
        };
        let mut claimed_rows = Vec::new();
        for row in self.fetch_all(Access::Write, query).await? {
            claimed_rows.push((row.timestamp("sort_key")?, row::claimed_connection(&row)?));
        }
        // Sorts the rows, because `RETURNING` does not return them in the order of the subquery.
        claimed_rows.sort_by(|a, b| (a.0, &a.1.client_id).cmp(&(b.0, &b.1.client_id)));
        Ok(claimed_rows.into_iter().map(|(_, row)| row).collect())
    }

    async fn count_due_rows(&self, reason: LookupReason, now: Timestamp) -> Result<u64> {
        let query = match reason {
            LookupReason::InventoryRefresh { reported_before } => self
                .statements()
                .count_due_inventory_refreshes
                .with([reported_before.into(), now.into()]),
            LookupReason::MissingTenant {
                looked_up_before,
                max_attempts,
            } => self.statements().count_due_missing_tenants.with([
                looked_up_before.into(),
                now.into(),
                max_attempts.into(),
            ]),
        };
        self.fetch_count(Access::Read, query).await
    }

    async fn save_lookup_results(&self, results: &[LookupResult], now: Timestamp) -> Result<u64> {
        SqlDatabase::save_lookup_results(self, results, now).await
    }

    async fn count_tenantless_clients(&self, max_attempts: u32) -> Result<TenantlessCounts> {
        let statement = self.statements().count_tenantless_clients;
        let query = statement.with([max_attempts.into()]);
        let row = fetch_optional(self, Access::Read, query).await?;
        row.as_ref()
            .map_or(Ok(TenantlessCounts::default()), row::tenantless_counts)
    }

    async fn list_tenantless_clients(&self, limit: u32) -> Result<Vec<TenantlessClient>> {
        let statement = self.statements().list_tenantless_clients;
        let rows = self.fetch_all(Access::Read, statement.with([limit.into()]));
        rows.await?.iter().map(row::tenantless_client).collect()
    }

    async fn reset_tenantless_clients(&self, clients: Option<&[ClientId]>) -> Result<u64> {
        // If the lookup time is the Unix epoch, the client is due for a lookup immediately.
        let lookup_time = Timestamp::UNIX_EPOCH.into();
        let query = if let Some(clients) = clients {
            let statement = self.statements().reset_tenantless_clients;
            statement.with([clients.into(), lookup_time])
        } else {
            let statement = self.statements().reset_all_tenantless_clients;
            statement.with([lookup_time])
        };
        self.execute(query).await
    }

    async fn delete_tenantless_clients(&self, clients: &[ClientId]) -> Result<u64> {
        let statement = self.statements().delete_tenantless_clients;
        self.execute(statement.with([clients.into()])).await
    }
}

/// The columns of a row that a [`LookupOutcome`] sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookupColumns<'a> {
    /// Name of the outcome: `found`, `not_found` or `unavailable`.
    pub outcome: &'static str,
    /// Organization id. Empty if the lookup found no tenant.
    pub org_id: &'a str,
    /// Account number. Empty if the lookup found no tenant.
    pub account: &'a str,
    /// Time at which the report to inventory was delivered. `None` leaves the stored time
    /// unchanged.
    pub reported_to_inventory_at: Option<Timestamp>,
    /// False if inventory does not accept this host.
    pub inventory_eligible: bool,
}

impl<'a> From<&'a LookupOutcome> for LookupColumns<'a> {
    fn from(outcome: &'a LookupOutcome) -> Self {
        let without_tenant = |outcome| Self {
            outcome,
            org_id: "",
            account: "",
            reported_to_inventory_at: None,
            inventory_eligible: true,
        };
        match outcome {
            LookupOutcome::Found {
                tenant,
                reported_to_inventory_at,
                inventory_eligible,
            } => Self {
                outcome: "found",
                org_id: tenant.org_id.as_str(),
                account: &tenant.account,
                reported_to_inventory_at: *reported_to_inventory_at,
                inventory_eligible: *inventory_eligible,
            },
            LookupOutcome::NotFound => without_tenant("not_found"),
            LookupOutcome::Unavailable => without_tenant("unavailable"),
        }
    }
}
