//! [`ClientRepository`] of a SQL database.

use async_trait::async_trait;
use const_format::concatcp;

use domain::{ClientId, OrgId, Timestamp};

use super::row::{LAST_SEEN_COLUMN, ONLINE_MESSAGE_COLUMNS};
use super::statements::{DEAD_LETTER_COLUMNS, FAILED_LOOKUPS};
use super::{Access, ColumnReader as _, Parameter, SqlDatabase, fetch_optional, row};
use crate::MAINTENANCE_CHUNK_ROWS;
use crate::clients::{ClientRecord, ClientRepository, HistoryEntry, TrimmedHistory};
use crate::dead_letters::StoredDeadLetter;
use crate::error::Result;

/// Columns of `connections` and `disconnected_clients` that have the same names in both tables.
const COMMON_COLUMNS: &str = concatcp!(
    "client_id, org_id, COALESCE(account, '') AS account, COALESCE(tags, 'null') AS tags, ",
    ONLINE_MESSAGE_COLUMNS,
    ", reconnects, hourly_reconnects, hourly_reconnects_since, tenant_lookup_timestamp, ",
    FAILED_LOOKUPS,
    " AS failed_lookups"
);

/// Start of a query for the rows of connected clients. A condition follows.
pub const SELECT_CONNECTED_CLIENTS: &str = concatcp!(
    "SELECT 1 AS connected, ",
    COMMON_COLUMNS,
    ", COALESCE(connected_since, online_received_at) AS connected_since, ",
    LAST_SEEN_COLUMN,
    ", NULL AS disconnected_at, NULL AS reason FROM connections WHERE "
);

/// Start of a query for the rows of disconnected clients, with the columns of
/// [`SELECT_CONNECTED_CLIENTS`]. A condition follows.
pub const SELECT_DISCONNECTED_CLIENTS: &str = concatcp!(
    "SELECT 0 AS connected, ",
    COMMON_COLUMNS,
    ", COALESCE(connected_since, message_sent) AS connected_since, \
     COALESCE(last_seen, disconnected_at) AS last_seen, disconnected_at, reason \
     FROM disconnected_clients WHERE "
);

const HISTORY_COLUMNS: &str = "number, at, org_id, status, reason";

crate::statements! {
    /// Parameters: client, organization.
    FIND_CLIENT_OF_ORG = concatcp!(
        SELECT_CONNECTED_CLIENTS, "client_id = $1 AND org_id = $2 UNION ALL ",
        SELECT_DISCONNECTED_CLIENTS, "client_id = $1 AND org_id = $2
          ORDER BY connected DESC LIMIT 1"
    );

    /// Parameters: client.
    FIND_CLIENT = concatcp!(
        SELECT_CONNECTED_CLIENTS, "client_id = $1 UNION ALL ",
        SELECT_DISCONNECTED_CLIENTS, "client_id = $1 ORDER BY connected DESC LIMIT 1"
    );

    /// Parameters: client, number after the first number, limit.
    LIST_HISTORY = concatcp!(
        "SELECT ", HISTORY_COLUMNS, " FROM presence_history
          WHERE client_id = $1 AND number < $2 ORDER BY number DESC LIMIT $3"
    );

    /// Parameters: client, number after the first number, limit, organization.
    LIST_HISTORY_OF_ORG = concatcp!(
        "SELECT ", HISTORY_COLUMNS, " FROM presence_history
          WHERE client_id = $1 AND number < $2 AND org_id = $4 ORDER BY number DESC LIMIT $3"
    );

    /// Parameters: client, limit.
    RECENT_DEAD_LETTERS = concatcp!(
        "SELECT ", DEAD_LETTER_COLUMNS, " FROM dead_letters WHERE client_id = $1
          ORDER BY last_received DESC, id DESC LIMIT $2"
    );

    /// Parameters: client before the first client, limit.
    HISTORY_RANGES =
        "SELECT client_id, min(number) AS oldest, max(number) AS newest FROM presence_history
          WHERE client_id > $1 GROUP BY client_id ORDER BY client_id LIMIT $2";
}

#[async_trait]
impl<D: SqlDatabase> ClientRepository for D {
    async fn find_client_for_org(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<ClientRecord>> {
        let query = FIND_CLIENT_OF_ORG.with([client.into(), org.into()]);
        let row = fetch_optional(self, Access::ApiRead, query).await?;
        let record = row.as_ref().map(row::client_record).transpose()?;
        // A row of an organization without a valid id has no tenant.
        Ok(record.filter(|record| record.tenant.is_some()))
    }

    async fn find_client(&self, client: &ClientId) -> Result<Option<ClientRecord>> {
        let query = FIND_CLIENT.with([client.into()]);
        let row = fetch_optional(self, Access::ApiRead, query).await?;
        row.as_ref().map(row::client_record).transpose()
    }

    async fn list_history(
        &self,
        org: Option<&OrgId>,
        client: &ClientId,
        before_number: Option<u64>,
        limit: u32,
    ) -> Result<Vec<HistoryEntry>> {
        let before_number = before_number.unwrap_or(u64::MAX);
        let query = match org {
            Some(org) => LIST_HISTORY_OF_ORG.with([
                client.into(),
                before_number.into(),
                limit.into(),
                org.into(),
            ]),
            None => LIST_HISTORY.with([client.into(), before_number.into(), limit.into()]),
        };
        let rows = self.fetch_all(Access::ApiRead, query).await?;
        rows.iter().map(row::history_entry).collect()
    }

    async fn search_clients(&self, text: &str, limit: u32) -> Result<Vec<ClientRecord>> {
        let statement = self.search_clients_statement();
        let query = statement.with([text.into(), limit.into()]);
        // The search of SQLite reads all rows, so it does not use the connections for short queries.
        let rows = self.fetch_all(Access::Read, query).await?;
        rows.iter().map(row::client_record).collect()
    }

    async fn recent_dead_letters(
        &self,
        client: &ClientId,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>> {
        let query = RECENT_DEAD_LETTERS.with([client.into(), limit.into()]);
        let rows = self.fetch_all(Access::ApiRead, query).await?;
        rows.iter()
            .map(|row| row::dead_letter(row, Vec::new()))
            .collect()
    }

    async fn delete_history_before(&self, time: Timestamp, limit: u32) -> Result<u64> {
        let statement = self.statements().delete_history_before;
        self.execute(statement.with([time.into(), limit.into()]))
            .await
    }

    async fn trim_history(
        &self,
        after_client: Option<&ClientId>,
        clients_per_call: u32,
        max_entries_per_client: u32,
    ) -> Result<TrimmedHistory> {
        let after_client = after_client.map_or("", ClientId::as_str);
        let query = HISTORY_RANGES.with([after_client.into(), clients_per_call.into()]);
        let mut above_limit = Vec::new();
        let mut last_client = None;
        for row in self.fetch_all(Access::Read, query).await? {
            let client = row::client_id(&row)?;
            let range = row.count("newest")?.saturating_sub(row.count("oldest")?);
            if range >= u64::from(max_entries_per_client) {
                above_limit.push(client.clone());
            }
            last_client = Some(client);
        }
        let mut deleted_entries = 0;
        while !above_limit.is_empty() {
            let query = self.statements().trim_history.with([
                Parameter::from(&above_limit[..]),
                max_entries_per_client.into(),
                MAINTENANCE_CHUNK_ROWS.into(),
            ]);
            let deleted = self.execute(query).await?;
            deleted_entries += deleted;
            if deleted < MAINTENANCE_CHUNK_ROWS.into() {
                break;
            }
        }
        Ok(TrimmedHistory {
            deleted_entries,
            last_client,
        })
    }
}
