//! [`PresenceRepository`] of a SQL database.

use std::collections::HashMap;

use async_trait::async_trait;

use domain::{ClientId, Tenant, Timestamp};

use super::{Access, ColumnReader as _, SqlDatabase, batch, row};
use crate::batch::PresenceBatch;
use crate::error::{Result, StoreError};
use crate::history::log_transitions;
use crate::partitions::{PartitionLease, QueueTopic};
use crate::presence::{PresenceRepository, StoredState, WriteOutcome};

#[async_trait]
impl<D: SqlDatabase> PresenceRepository for D {
    async fn load_client_states(
        &self,
        clients: &[ClientId],
    ) -> Result<HashMap<ClientId, StoredState>> {
        let query = self.statements().load_client_states.with([clients.into()]);
        let rows = self.fetch_all(Access::Record, query).await?;
        let mut states: HashMap<ClientId, StoredState> = HashMap::with_capacity(rows.len());
        for row in &rows {
            let state = states.entry(row::client_id(row)?).or_default();
            row::add_to_state(state, row)?;
        }
        load_latest_transitions(self, clients, &mut states).await?;
        Ok(states)
    }

    fn records_events(&self) -> bool {
        self.writes_events()
    }

    async fn record_batch(
        &self,
        batch: &PresenceBatch,
        leases: &[PartitionLease],
        now: Timestamp,
    ) -> Result<WriteOutcome> {
        let record = async {
            if self.record_in_one_statement(batch, leases, now).await? {
                log_transitions(&batch.history);
                return Ok(WriteOutcome::Committed);
            }
            let (transaction, statements) = (self.begin().await?, self.statements());
            let writes_events = self.writes_events();
            batch::record_batch(transaction, statements, batch, leases, now, writes_events).await
        };
        match record.await {
            Err(StoreError::OutdatedBatch) => Ok(WriteOutcome::Conflict),
            outcome => outcome,
        }
    }

    async fn acquire_partitions(
        &self,
        queue: QueueTopic,
        partitions: &[i32],
        new_owner: &str,
    ) -> Result<Vec<PartitionLease>> {
        let rows = self
            .next_epochs(queue.as_str(), partitions, new_owner)
            .await?;
        rows.iter()
            .map(|row| row::partition_lease(row, queue))
            .collect()
    }

    async fn restore_tenants(&self, clients: &[(ClientId, Tenant)], now: Timestamp) -> Result<u64> {
        SqlDatabase::restore_tenants(self, clients, now).await
    }
}

/// Loads the number of the latest history row of each client whose transitions no row counts. Most of these
/// clients are new, and have no history.
///
/// This is a query of its own, because a join in the query for the states would make every small batch
/// slower: PostgreSQL would need more time to plan the query than to run it.
async fn load_latest_transitions<D: SqlDatabase>(
    database: &D,
    clients: &[ClientId],
    states: &mut HashMap<ClientId, StoredState>,
) -> Result<()> {
    let is_counted = |client: &&ClientId| states.get(*client).is_some_and(StoredState::is_counted);
    let uncounted = clients.iter().filter(|client| !is_counted(client));
    let uncounted: Vec<ClientId> = uncounted.cloned().collect();
    if uncounted.is_empty() {
        return Ok(());
    }
    let statement = database.statements().latest_transitions;
    let query = statement.with([uncounted[..].into()]);
    for row in database.fetch_all(Access::Record, query).await? {
        let state = states.entry(row::client_id(&row)?).or_default();
        state.latest_transition = row.count("number")?;
    }
    Ok(())
}
