//! [`ClientRepository`] of a simulated process.

use async_trait::async_trait;

use crate::store_faults::ProcessStore;
use domain::{ClientId, OrgId, Timestamp};
use store::{
    ClientRecord, ClientRepository, HistoryEntry, Result, StoredDeadLetter, TrimmedHistory,
};

#[async_trait]
impl ClientRepository for ProcessStore {
    async fn find_client_for_org(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<ClientRecord>> {
        let (org, client) = (org.clone(), client.clone());
        self.call("find_client_for_org", async move |store| {
            store.find_client_for_org(&org, &client).await
        })
        .await
    }

    async fn find_client(&self, client: &ClientId) -> Result<Option<ClientRecord>> {
        let client = client.clone();
        self.call("find_client", async move |store| {
            store.find_client(&client).await
        })
        .await
    }

    async fn list_history(
        &self,
        org: Option<&OrgId>,
        client: &ClientId,
        before_number: Option<u64>,
        limit: u32,
    ) -> Result<Vec<HistoryEntry>> {
        let (org, client) = (org.cloned(), client.clone());
        self.call("list_history", async move |store| {
            store
                .list_history(org.as_ref(), &client, before_number, limit)
                .await
        })
        .await
    }

    async fn search_clients(&self, text: &str, limit: u32) -> Result<Vec<ClientRecord>> {
        let text = text.to_owned();
        self.call("search_clients", async move |store| {
            store.search_clients(&text, limit).await
        })
        .await
    }

    async fn recent_dead_letters(
        &self,
        client: &ClientId,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>> {
        let client = client.clone();
        self.call("recent_dead_letters", async move |store| {
            store.recent_dead_letters(&client, limit).await
        })
        .await
    }

    async fn delete_history_before(&self, time: Timestamp, limit: u32) -> Result<u64> {
        self.call("delete_history_before", async move |store| {
            store.delete_history_before(time, limit).await
        })
        .await
    }

    async fn trim_history(
        &self,
        after_client: Option<&ClientId>,
        clients_per_call: u32,
        max_entries_per_client: u32,
    ) -> Result<TrimmedHistory> {
        let after_client = after_client.cloned();
        self.call("trim_history", async move |store| {
            store
                .trim_history(
                    after_client.as_ref(),
                    clients_per_call,
                    max_entries_per_client,
                )
                .await
        })
        .await
    }
}
