//! [`MaintenanceRepository`] of a SQL database.

use async_trait::async_trait;

use domain::{ClientId, OrgId, Timestamp};

use super::{Access, ColumnReader as _, SqlDatabase, row};
use crate::error::Result;
use crate::maintenance::{MaintenanceRepository, OrgCount};

#[async_trait]
impl<D: SqlDatabase> MaintenanceRepository for D {
    async fn ping(&self) -> Result<()> {
        SqlDatabase::ping(self).await
    }

    async fn close(&self) {
        SqlDatabase::close(self).await;
    }

    async fn delete_clients_disconnected_before(&self, time: Timestamp, limit: u32) -> Result<u64> {
        SqlDatabase::delete_clients_disconnected_before(self, time, limit).await
    }

    async fn flush_search_index(&self) -> Result<()> {
        if let Some(statement) = self.flush_search_index_statement() {
            self.fetch_all(Access::Write, statement.with([])).await?;
        }
        Ok(())
    }

    async fn list_client_ids(
        &self,
        after_client: Option<&ClientId>,
        limit: u32,
    ) -> Result<Vec<ClientId>> {
        let after_client = after_client.map_or("", ClientId::as_str);
        let statement = self.statements().list_client_ids;
        let query = statement.with([after_client.into(), limit.into()]);
        let rows = self.fetch_all(Access::Read, query).await?;
        rows.iter().map(row::client_id).collect()
    }

    async fn count_connections_with_tenant(&self) -> Result<u64> {
        let query = self.statements().connection_count();
        self.fetch_count(Access::Read, query).await
    }

    async fn count_by_org(&self, limit: u32) -> Result<(Vec<OrgCount>, u64)> {
        let query = self.statements().count_by_org.with([limit.into()]);
        let mut counts = Vec::new();
        let mut tenantless_count = 0;
        for row in self.fetch_all(Access::Read, query).await? {
            let count = row.count("connections")?;
            let org_id = row.text("org_id")?;
            if org_id.is_empty() {
                tenantless_count = count;
            } else if let Ok(org_id) = OrgId::new(&org_id) {
                counts.push((org_id, count));
            }
        }
        Ok((counts, tenantless_count))
    }
}
