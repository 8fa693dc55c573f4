//! [`LookupQueueRepository`] of a SQL database.

use async_trait::async_trait;

use domain::{ClientId, Timestamp};

use super::{Access, ColumnReader, SqlDatabase, SqlTransaction as _, fetch_optional, row};
use crate::error::Result;
use crate::lookup_queue::{
    ClaimedConnection, ClientDetailsVisitor, LookupOutcome, LookupQueueRepository, LookupReason,
    LookupResult, TenantlessClient, TenantlessCounts,
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
        let statements = self.statements();
        for (inventory_refresh, missing_tenant) in [
            (
                statements.claim_for_inventory_refresh,
                statements.claim_for_missing_tenant,
            ),
            (
                statements.claim_failed_for_inventory_refresh,
                statements.claim_failed_for_missing_tenant,
            ),
        ] {
            let query = match reason {
                LookupReason::InventoryRefresh { reported_before } => inventory_refresh.with([
                    reported_before.into(),
                    claims_ended_before.into(),
                    limit.into(),
                    claim_until.into(),
                ]),
                LookupReason::MissingTenant {
                    looked_up_before,
                    max_attempts,
                } => missing_tenant.with([
                    looked_up_before.into(),
                    claims_ended_before.into(),
                    max_attempts.into(),
                    limit.into(),
                    claim_until.into(),
                ]),
            };
            let claimed_rows = claimed_rows(&self.fetch_all(Access::Write, query).await?)?;
            if !claimed_rows.is_empty() {
                return Ok(claimed_rows);
            }
        }
        Ok(Vec::new())
    }

    async fn visit_client_details(
        &self,
        clients: &[ClientId],
        visit: ClientDetailsVisitor<'_>,
    ) -> Result<()> {
        let query = self.statements().find_client_details.with([clients.into()]);
        let mut visit_row = |row| Ok(visit(row::client_details(&row)?));
        self.visit_rows(Access::Read, query, &mut visit_row).await
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

    async fn release_claims(
        &self,
        clients: &[ClientId],
        claim_end: Timestamp,
        now: Timestamp,
    ) -> Result<u64> {
        let statement = self.statements().release_claims;
        let query = statement.with([clients.into(), claim_end.into(), now.into()]);
        self.execute(query).await
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

    async fn reset_tenantless_clients(&self, clients: &[ClientId]) -> Result<u64> {
        let statement = self.statements().reset_tenantless_clients;
        let query = statement.with([clients.into(), IMMEDIATELY_DUE.into()]);
        self.execute(query).await
    }

    async fn reset_tenantless_clients_after(
        &self,
        after_client: Option<&ClientId>,
        limit: u32,
    ) -> Result<Vec<ClientId>> {
        let after_client = after_client.map_or("", ClientId::as_str);
        let statement = self.statements().reset_next_tenantless_clients;
        let query = statement.with([after_client.into(), limit.into(), IMMEDIATELY_DUE.into()]);
        let rows = self.fetch_all(Access::Write, query).await?;
        let client_ids = rows.iter().map(row::client_id);
        let mut client_ids: Vec<ClientId> = client_ids.collect::<Result<_>>()?;
        // Sorts the rows, because `RETURNING` does not return them in the order of the subquery.
        client_ids.sort_unstable();
        Ok(client_ids)
    }

    async fn delete_tenantless_clients(&self, clients: &[ClientId]) -> Result<u64> {
        let statements = self.statements();
        let mut transaction = self.begin().await?;
        let delete = statements.delete_tenantless_clients.with([clients.into()]);
        let rows = transaction.fetch_all(delete).await?;
        let deleted: Vec<ClientId> = rows.iter().map(row::client_id).collect::<Result<_>>()?;
        let delete_history = statements.delete_history.with([deleted[..].into()]);
        transaction.execute(delete_history).await?;
        transaction.commit().await?;
        Ok(deleted.len() as u64)
    }
}

/// Time of the latest lookup of a client that is due for a lookup immediately.
const IMMEDIATELY_DUE: Timestamp = Timestamp::UNIX_EPOCH;

fn claimed_rows(rows: &[impl ColumnReader]) -> Result<Vec<ClaimedConnection>> {
    let mut claimed_rows = Vec::with_capacity(rows.len());
    for row in rows {
        claimed_rows.push((row.timestamp("sort_key")?, row::claimed_connection(row)?));
    }
    // Sorts the rows, because `RETURNING` does not return them in the order of the subquery.
    claimed_rows.sort_by(|a, b| (a.0, &a.1.client_id).cmp(&(b.0, &b.1.client_id)));
    Ok(claimed_rows.into_iter().map(|(_, row)| row).collect())
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
    /// Whether the lookup or the report to inventory failed.
    pub has_failed: bool,
}

impl<'a> From<&'a LookupOutcome> for LookupColumns<'a> {
    fn from(outcome: &'a LookupOutcome) -> Self {
        let without_tenant = |outcome_name| Self {
            outcome: outcome_name,
            org_id: "",
            account: "",
            reported_to_inventory_at: None,
            inventory_eligible: true,
            has_failed: *outcome == LookupOutcome::Unavailable,
        };
        match outcome {
            LookupOutcome::Found {
                tenant,
                reported_to_inventory_at,
                inventory_eligible,
                report_failed,
            } => Self {
                outcome: "found",
                org_id: tenant.org_id.as_str(),
                account: &tenant.account,
                reported_to_inventory_at: *reported_to_inventory_at,
                inventory_eligible: *inventory_eligible,
                has_failed: *report_failed,
            },
            LookupOutcome::NotFound => without_tenant("not_found"),
            LookupOutcome::Unavailable => without_tenant("unavailable"),
        }
    }
}
