//! The repositories of a simulated process. Each method sends one call to the database, see
//! [`ProcessStore::call`].

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;

use crate::options::Plant;
use crate::store_faults::ProcessStore;
use domain::{ClientId, Tenant, Timestamp};
use store::{
    ClaimedConnection, ClientDetailsVisitor, DeadLetterCount, DeadLetterFilter,
    DeadLetterRepository, IngestEpoch, IngestEpochRepository, LookupOutcome, LookupQueueRepository,
    LookupReason, LookupResult, MaintenanceRepository, OrgCount, PartitionLease, PresenceBatch,
    PresenceRepository, QueueTopic, Result, StoredDeadLetter, StoredState, TenantChange,
    TenantlessClient, TenantlessCounts, WriteOutcome,
};

#[async_trait]
impl PresenceRepository for ProcessStore {
    async fn load_client_states(
        &self,
        clients: &[ClientId],
    ) -> Result<HashMap<ClientId, StoredState>> {
        let clients = clients.to_vec();
        self.call("load_client_states", async move |store| {
            PresenceRepository::load_client_states(&store, &clients).await
        })
        .await
    }

    async fn record_batch(
        &self,
        batch: &PresenceBatch,
        leases: &[PartitionLease],
        now: Timestamp,
    ) -> Result<WriteOutcome> {
        for row in &batch.upserts {
            if matches!(row.tenant, TenantChange::NotFound(_)) {
                self.context.check_not_found(&row.client_id);
            }
        }
        for row in &batch.heartbeats {
            if matches!(row.tenant, Some(TenantChange::NotFound(_))) {
                self.context.check_not_found(&row.client_id);
            }
        }
        let leases = match self.context.plant {
            Some(Plant::SkippedFence) => Vec::new(),
            _ => leases.to_vec(),
        };
        let (batch, context) = (batch.clone(), self.context.clone());
        self.call("record_batch", async move |store| {
            context.check_rows(&batch)?;
            let outcome = PresenceRepository::record_batch(&store, &batch, &leases, now).await?;
            match outcome {
                WriteOutcome::Committed => context.known_clients.add_committed(&batch),
                WriteOutcome::Fenced(_) => {
                    context.fenced_batches.fetch_add(1, Ordering::Relaxed);
                }
                WriteOutcome::Conflict => {}
            }
            Ok(outcome)
        })
        .await
    }

    async fn acquire_partitions(
        &self,
        queue: QueueTopic,
        partitions: &[i32],
        new_owner: &str,
    ) -> Result<Vec<PartitionLease>> {
        let (partitions, new_owner) = (partitions.to_vec(), new_owner.to_owned());
        let fault = self.draw_statement_fault();
        self.call_with_fault("acquire_partitions", fault, async move |store| {
            PresenceRepository::acquire_partitions(&store, queue, &partitions, &new_owner).await
        })
        .await
    }

    async fn restore_tenants(&self, clients: &[(ClientId, Tenant)], now: Timestamp) -> Result<u64> {
        let clients = clients.to_vec();
        self.call("restore_tenants", async move |store| {
            PresenceRepository::restore_tenants(&store, &clients, now).await
        })
        .await
    }
}

#[async_trait]
impl IngestEpochRepository for ProcessStore {
    async fn next_ingest_epoch(
        &self,
        session_name: &str,
        session_present: bool,
    ) -> Result<IngestEpoch> {
        let session_name = session_name.to_owned();
        let fault = self.draw_statement_fault();
        self.call_with_fault("next_ingest_epoch", fault, async move |store| {
            store
                .next_ingest_epoch(&session_name, session_present)
                .await
        })
        .await
    }

    async fn hold_ingest_session(
        &self,
        session_name: &str,
        holder: &str,
        duration: Duration,
    ) -> Result<bool> {
        let (session_name, holder) = (session_name.to_owned(), holder.to_owned());
        self.call("hold_ingest_session", async move |store| {
            store
                .hold_ingest_session(&session_name, &holder, duration)
                .await
        })
        .await
    }

    async fn release_ingest_session(&self, session_name: &str, holder: &str) -> Result<()> {
        let (session_name, holder) = (session_name.to_owned(), holder.to_owned());
        self.call("release_ingest_session", async move |store| {
            store.release_ingest_session(&session_name, &holder).await
        })
        .await
    }
}

#[async_trait]
impl LookupQueueRepository for ProcessStore {
    async fn claim_for_lookup(
        &self,
        reason: LookupReason,
        limit: u32,
        claims_ended_before: Timestamp,
        claim_until: Timestamp,
    ) -> Result<Vec<ClaimedConnection>> {
        self.call("claim_for_lookup", async move |store| {
            store
                .claim_for_lookup(reason, limit, claims_ended_before, claim_until)
                .await
        })
        .await
    }

    async fn visit_client_details(
        &self,
        clients: &[ClientId],
        visit: ClientDetailsVisitor<'_>,
    ) -> Result<()> {
        let clients = clients.to_vec();
        let details = self
            .call("visit_client_details", async move |store| {
                let mut details = Vec::new();
                let mut collect = |client| {
                    details.push(client);
                    ControlFlow::Continue(())
                };
                store.visit_client_details(&clients, &mut collect).await?;
                Ok(details)
            })
            .await?;
        for client in details {
            if visit(client).is_break() {
                break;
            }
        }
        Ok(())
    }

    async fn count_due_rows(&self, reason: LookupReason, now: Timestamp) -> Result<u64> {
        self.call("count_due_rows", async move |store| {
            store.count_due_rows(reason, now).await
        })
        .await
    }

    async fn save_lookup_results(&self, results: &[LookupResult], now: Timestamp) -> Result<u64> {
        for result in results {
            if result.outcome == LookupOutcome::NotFound {
                self.context.check_not_found(&result.client_id);
            }
        }
        let results = results.to_vec();
        self.call("save_lookup_results", async move |store| {
            LookupQueueRepository::save_lookup_results(&store, &results, now).await
        })
        .await
    }

    async fn release_claims(
        &self,
        clients: &[ClientId],
        claim_end: Timestamp,
        now: Timestamp,
    ) -> Result<u64> {
        let clients = clients.to_vec();
        self.call("release_claims", async move |store| {
            store.release_claims(&clients, claim_end, now).await
        })
        .await
    }

    async fn count_tenantless_clients(&self, max_attempts: u32) -> Result<TenantlessCounts> {
        self.call("count_tenantless_clients", async move |store| {
            store.count_tenantless_clients(max_attempts).await
        })
        .await
    }

    async fn list_tenantless_clients(&self, limit: u32) -> Result<Vec<TenantlessClient>> {
        self.call("list_tenantless_clients", async move |store| {
            store.list_tenantless_clients(limit).await
        })
        .await
    }

    async fn reset_tenantless_clients(&self, clients: &[ClientId]) -> Result<u64> {
        let clients = clients.to_vec();
        self.call("reset_tenantless_clients", async move |store| {
            store.reset_tenantless_clients(&clients).await
        })
        .await
    }

    async fn reset_tenantless_clients_after(
        &self,
        after_client: Option<&ClientId>,
        limit: u32,
    ) -> Result<Vec<ClientId>> {
        let after_client = after_client.cloned();
        self.call("reset_tenantless_clients_after", async move |store| {
            store
                .reset_tenantless_clients_after(after_client.as_ref(), limit)
                .await
        })
        .await
    }

    async fn delete_tenantless_clients(&self, clients: &[ClientId]) -> Result<u64> {
        let clients = clients.to_vec();
        self.call("delete_tenantless_clients", async move |store| {
            store.delete_tenantless_clients(&clients).await
        })
        .await
    }
}

#[async_trait]
impl DeadLetterRepository for ProcessStore {
    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>> {
        let filter = filter.clone();
        self.call("list_dead_letters", async move |store| {
            store.list_dead_letters(&filter, limit).await
        })
        .await
    }

    async fn find_dead_letter(&self, dead_letter_id: i64) -> Result<Option<StoredDeadLetter>> {
        self.call("find_dead_letter", async move |store| {
            store.find_dead_letter(dead_letter_id).await
        })
        .await
    }

    async fn request_replay(&self, dead_letter_id: i64, now: Timestamp) -> Result<bool> {
        self.call("request_replay", async move |store| {
            store.request_replay(dead_letter_id, now).await
        })
        .await
    }

    async fn finish_replay(&self, dead_letter_id: i64, occurrences: u64) -> Result<bool> {
        self.call("finish_replay", async move |store| {
            store.finish_replay(dead_letter_id, occurrences).await
        })
        .await
    }

    async fn purge_dead_letters(&self, filter: &DeadLetterFilter, limit: u32) -> Result<u64> {
        let filter = filter.clone();
        self.call("purge_dead_letters", async move |store| {
            store.purge_dead_letters(&filter, limit).await
        })
        .await
    }

    async fn count_dead_letters_by_client(
        &self,
        after_client: Option<&str>,
        limit: u32,
    ) -> Result<Vec<DeadLetterCount>> {
        let after_client = after_client.map(str::to_owned);
        self.call("count_dead_letters_by_client", async move |store| {
            store
                .count_dead_letters_by_client(after_client.as_deref(), limit)
                .await
        })
        .await
    }

    async fn trim_dead_letters(
        &self,
        client_ids: &[&str],
        max_dead_letters_per_client: u64,
        limit: u32,
    ) -> Result<u64> {
        let client_ids: Vec<String> = client_ids.iter().map(|id| (*id).to_owned()).collect();
        self.call("trim_dead_letters", async move |store| {
            let client_ids: Vec<&str> = client_ids.iter().map(String::as_str).collect();
            store
                .trim_dead_letters(&client_ids, max_dead_letters_per_client, limit)
                .await
        })
        .await
    }

    async fn delete_oldest_dead_letters(&self, limit: u32) -> Result<u64> {
        self.call("delete_oldest_dead_letters", async move |store| {
            store.delete_oldest_dead_letters(limit).await
        })
        .await
    }
}

#[async_trait]
impl MaintenanceRepository for ProcessStore {
    async fn ping(&self) -> Result<()> {
        self.call("ping", async move |store| {
            MaintenanceRepository::ping(&store).await
        })
        .await
    }

    async fn close(&self) {}

    async fn delete_clients_disconnected_before(&self, time: Timestamp, limit: u32) -> Result<u64> {
        self.call("delete_clients_disconnected_before", async move |store| {
            MaintenanceRepository::delete_clients_disconnected_before(&store, time, limit).await
        })
        .await
    }

    async fn flush_search_index(&self) -> Result<()> {
        self.call("flush_search_index", async move |store| {
            store.flush_search_index().await
        })
        .await
    }

    async fn list_client_ids(
        &self,
        after_client: Option<&ClientId>,
        limit: u32,
    ) -> Result<Vec<ClientId>> {
        let after_client = after_client.cloned();
        self.call("list_client_ids", async move |store| {
            store.list_client_ids(after_client.as_ref(), limit).await
        })
        .await
    }

    async fn count_connections_with_tenant(&self) -> Result<u64> {
        self.call("count_connections_with_tenant", async move |store| {
            store.count_connections_with_tenant().await
        })
        .await
    }

    async fn count_by_org(&self, limit: u32) -> Result<(Vec<OrgCount>, u64)> {
        self.call("count_by_org", async move |store| {
            store.count_by_org(limit).await
        })
        .await
    }
}
