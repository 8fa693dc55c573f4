//! [`ConnectionRepository`] of a SQL database.

use std::ops::ControlFlow;

use async_trait::async_trait;

use domain::{ClientId, Connection, OfflineReason, OrgId};

use super::{Access, ColumnReader, RowPage, SqlDatabase, batch, fetch_optional, row};
use crate::connections::{ConnectionRepository, ConnectionVisitor};
use crate::error::Result;
use crate::page::{ClientPage, PageRequest};

#[async_trait]
impl<D: SqlDatabase> ConnectionRepository for D {
    async fn find_connection_for_org(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>> {
        let statement = self.statements().find_connection;
        let query = statement.with([client.into(), org.into()]);
        let row = fetch_optional(self, Access::ApiRead, query).await?;
        row.as_ref().map(row::connection).transpose()
    }

    async fn visit_connections_of_clients(
        &self,
        org: &OrgId,
        clients: &[ClientId],
        visit: ConnectionVisitor<'_>,
    ) -> Result<()> {
        let statement = self.statements().find_connections;
        let query = statement.with([clients.into(), org.into()]);
        let mut visit_row = |row| Ok(visit(row::connection(&row)?));
        self.visit_rows(Access::ApiRead, query, &mut visit_row)
            .await
    }

    async fn find_org_or_satellite_connection(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>> {
        let statement = self.statements().find_connection_in_any_org;
        let query = statement.with([client.into(), org.into()]);
        let row = fetch_optional(self, Access::ApiRead, query).await?;
        let connection = row.as_ref().map(row::connection).transpose()?;
        Ok(connection
            .filter(|connection| connection.tenant.org_id == *org || connection.is_satellite()))
    }

    async fn visit_connections_for_org(
        &self,
        org: &OrgId,
        request: &PageRequest,
        visit: ConnectionVisitor<'_>,
    ) -> Result<u64> {
        let mut visit_row = |row: D::Row| {
            if row.optional_text("client_id")?.is_none() {
                return Ok(ControlFlow::Continue(()));
            }
            Ok(visit(row::connection(&row)?))
        };
        self.visit_connections(org, request, &mut visit_row).await
    }

    async fn list_clients_for_org(
        &self,
        org: &OrgId,
        offset: u64,
        limit: u64,
    ) -> Result<ClientPage> {
        client_page(&self.fetch_org_clients(org, offset, limit).await?)
    }

    async fn list_all_clients(&self, offset: u64, limit: u64) -> Result<ClientPage> {
        client_page(&self.fetch_all_clients(offset, limit).await?)
    }

    async fn mark_disconnected(&self, connection: &Connection) -> Result<bool> {
        let transaction = self.begin().await?;
        let writes_events = self.writes_events();
        let reason = OfflineReason::Disconnected;
        batch::mark_disconnected(
            transaction,
            self.statements(),
            connection,
            reason,
            writes_events,
        )
        .await
    }
}

fn client_page(page: &RowPage<impl ColumnReader>) -> Result<ClientPage> {
    let mut clients = Vec::with_capacity(page.rows.len());
    for row in &page.rows {
        if row.optional_text("client_id")?.is_some() {
            clients.push((row::tenant(row)?, row::client_id(row)?));
        }
    }
    Ok(ClientPage {
        total_count: page.total_count,
        clients,
    })
}
