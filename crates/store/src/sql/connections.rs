//! [`ConnectionRepository`] of a SQL database.

use async_trait::async_trait;

use domain::{ClientId, Connection, OrgId};

use super::{Access, ColumnReader as _, RowPage, SqlDatabase, batch, fetch_optional, row};
use crate::connections::ConnectionRepository;
use crate::error::Result;
use crate::page::{ClientPage, ConnectionPage, PageRequest};

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

    async fn find_connections_for_org(
        &self,
        org: &OrgId,
        clients: &[ClientId],
    ) -> Result<Vec<Connection>> {
        let statement = self.statements().find_connections;
        let query = statement.with([clients.into(), org.into()]);
        let rows = self.fetch_all(Access::ApiRead, query).await?;
        rows.iter().map(row::connection).collect()
    }

    async fn find_org_or_satellite_connection(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>> {
        let statement = self.statements().find_connection_in_any_org;
        let query = statement.with([client.into()]);
        let row = fetch_optional(self, Access::ApiRead, query).await?;
        let connection = row.as_ref().map(row::connection).transpose()?;
        Ok(connection
            .filter(|connection| connection.tenant.org_id == *org || connection.is_satellite()))
    }

    async fn list_connections_for_org(
        &self,
        org: &OrgId,
        request: &PageRequest,
    ) -> Result<ConnectionPage> {
        let RowPage { total_count, rows } = self.fetch_connections(org, request).await?;
        let mut connections = Vec::with_capacity(rows.len());
        for row in &rows {
            if row.optional_text("client_id")?.is_some() {
                connections.push(row::connection(row)?);
            }
        }
        Ok(ConnectionPage {
            total_count,
            connections,
        })
    }

    async fn list_all_clients(&self, offset: u64, limit: u64) -> Result<ClientPage> {
        let RowPage { total_count, rows } = self.fetch_all_clients(offset, limit).await?;
        let mut clients = Vec::with_capacity(rows.len());
        for row in &rows {
            if row.optional_text("client_id")?.is_some() {
                clients.push((row::tenant(row)?, row::client_id(row)?));
            }
        }
        Ok(ClientPage {
            total_count,
            clients,
        })
    }

    async fn mark_disconnected(&self, connection: &Connection) -> Result<bool> {
        batch::mark_disconnected(self.begin().await?, self.statements(), connection).await
    }
}
