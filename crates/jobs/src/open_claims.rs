//! The rows that a run of a lookup job has claimed and not yet released.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

use domain::{ClientId, Timestamp};
use store::{ClaimedConnection, LookupQueueRepository, StoreError};

/// Clients with a claim, and the time at which the claim ends by itself.
#[derive(Debug, Default)]
pub(super) struct OpenClaims(Mutex<HashMap<ClientId, Timestamp>>);

impl OpenClaims {
    pub(super) fn add(&self, rows: &[ClaimedConnection], claim_end: Timestamp) {
        let clients = rows.iter().map(|row| (row.client_id.clone(), claim_end));
        self.0.lock().extend(clients);
    }

    /// Ends the claims of these clients in the database. A claim that a lookup result has ended
    /// already stays ended.
    pub(super) async fn release(
        &self,
        clients: &[ClientId],
        lookup_queue: &dyn LookupQueueRepository,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut clients_by_end: BTreeMap<Timestamp, Vec<ClientId>> = BTreeMap::new();
        {
            let open_claims = self.0.lock();
            for client in clients {
                if let Some(claim_end) = open_claims.get(client) {
                    let clients = clients_by_end.entry(*claim_end).or_default();
                    clients.push(client.clone());
                }
            }
        }
        for (claim_end, clients) in clients_by_end {
            let release = lookup_queue.release_claims(&clients, claim_end, now);
            release.await?;
            // If the release fails, `release_all` tries again.
            let mut open_claims = self.0.lock();
            for client in &clients {
                open_claims.remove(client);
            }
        }
        Ok(())
    }

    /// Ends all claims in the database.
    pub(super) async fn release_all(
        &self,
        lookup_queue: &dyn LookupQueueRepository,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let clients: Vec<ClientId> = self.0.lock().keys().cloned().collect();
        self.release(&clients, lookup_queue, now).await
    }
}
