//! Deletes rows whose retention time has passed. Works in chunks, so no statement deletes too many
//! rows.

use std::sync::Arc;
use std::time::Duration;

use domain::{Timestamp, clock};
use store::{
    ClientRepository, DeadLetterFilter, DeadLetterRepository, EventRepository,
    MAINTENANCE_CHUNK_ROWS, MaintenanceRepository, StoreError,
};

/// How long events are stored that are not yet forwarded.
const MAX_UNFORWARDED_RETENTION: Duration = Duration::from_hours(7 * 24);

/// Deletes clients that disconnected before `time`. Returns the number of deleted clients.
pub(super) async fn delete_disconnected_clients(
    maintenance: &dyn MaintenanceRepository,
    time: Timestamp,
) -> Result<u64, StoreError> {
    let mut deleted_count = 0;
    loop {
        let deleted = maintenance
            .delete_clients_disconnected_before(time, MAINTENANCE_CHUNK_ROWS)
            .await?;
        deleted_count += deleted;
        if deleted < MAINTENANCE_CHUNK_ROWS.into() {
            return Ok(deleted_count);
        }
    }
}

/// Deletes dead letters that were last received before `time`. Returns the number of deleted dead
/// letters.
pub(super) async fn delete_expired_dead_letters(
    dead_letters: &dyn DeadLetterRepository,
    time: Timestamp,
) -> Result<u64, StoreError> {
    let filter = DeadLetterFilter {
        received_before: Some(time),
        ..DeadLetterFilter::default()
    };
    let mut deleted_count = 0;
    loop {
        let deleted = dead_letters
            .purge_dead_letters(&filter, MAINTENANCE_CHUNK_ROWS)
            .await?;
        deleted_count += deleted;
        if deleted < MAINTENANCE_CHUNK_ROWS.into() {
            return Ok(deleted_count);
        }
    }
}

/// Deletes history entries of transitions before `time`. Returns the number of deleted entries.
pub(super) async fn delete_expired_history(
    clients: &dyn ClientRepository,
    time: Timestamp,
) -> Result<u64, StoreError> {
    let mut deleted_count = 0;
    loop {
        let deleted = clients
            .delete_history_before(time, MAINTENANCE_CHUNK_ROWS)
            .await?;
        deleted_count += deleted;
        if deleted < MAINTENANCE_CHUNK_ROWS.into() {
            return Ok(deleted_count);
        }
    }
}

/// Deletes the oldest history entries of each client with more than `max_entries_per_client` entries.
/// Returns the number of deleted entries.
pub(super) async fn trim_history(
    clients: &dyn ClientRepository,
    max_entries_per_client: u32,
) -> Result<u64, StoreError> {
    let mut deleted_count = 0;
    let mut last_client = None;
    loop {
        let trimmed = clients
            .trim_history(
                last_client.as_ref(),
                MAINTENANCE_CHUNK_ROWS,
                max_entries_per_client,
            )
            .await?;
        deleted_count += trimmed.deleted_entries;
        last_client = trimmed.last_client;
        if last_client.is_none() {
            return Ok(deleted_count);
        }
    }
}

/// Deletes expired events.
pub struct EventRetention {
    /// The events.
    pub events: Arc<dyn EventRepository>,
    /// How long events are stored.
    pub retention: Duration,
    /// Whether events that are not yet forwarded are stored longer.
    pub waits_for_forwarder: bool,
}

impl EventRetention {
    /// Deletes expired events. Returns the number of deleted events.
    pub(super) async fn delete_expired_events(&self, now: Timestamp) -> Result<u64, StoreError> {
        let expired_before = clock::saturating_sub(now, self.retention);
        let forwarded_position = if self.waits_for_forwarder {
            self.events.forwarded_position().await?
        } else {
            None
        };
        let Some(forwarded_position) = forwarded_position else {
            return self
                .delete_events_before(expired_before, now, u64::MAX)
                .await;
        };
        let deleted = self
            .delete_events_before(expired_before, now, forwarded_position)
            .await?;
        let longest_retention = self.retention.max(MAX_UNFORWARDED_RETENTION);
        let expired_before = clock::saturating_sub(now, longest_retention);
        let unforwarded = self.delete_events_before(expired_before, now, u64::MAX);
        Ok(deleted + unforwarded.await?)
    }

    async fn delete_events_before(
        &self,
        time: Timestamp,
        now: Timestamp,
        up_to_position: u64,
    ) -> Result<u64, StoreError> {
        let mut deleted_count = 0;
        loop {
            let deleted = self
                .events
                .delete_events_before(time, now, MAINTENANCE_CHUNK_ROWS, up_to_position)
                .await?;
            deleted_count += deleted;
            if deleted < MAINTENANCE_CHUNK_ROWS.into() {
                return Ok(deleted_count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_forwarder::tests::MemoryEvents;

    #[tokio::test]
    async fn events_that_are_not_forwarded_are_deleted_after_seven_days() {
        let now: Timestamp = "2026-01-20T00:00:00Z".parse().unwrap();
        let day_before: Timestamp = "2026-01-19T00:00:00Z".parse().unwrap();
        let week_before: Timestamp = "2026-01-13T00:00:00Z".parse().unwrap();
        for (waits_for_forwarder, expected) in [
            (true, vec![(day_before, 5), (week_before, u64::MAX)]),
            (false, vec![(day_before, u64::MAX)]),
        ] {
            let events = MemoryEvents::new(&[]);
            *events.forwarded.lock() = 5;
            let retention = EventRetention {
                events: events.clone(),
                retention: Duration::from_hours(24),
                waits_for_forwarder,
            };
            retention.delete_expired_events(now).await.unwrap();
            assert_eq!(*events.deletions.lock(), expected);
        }
    }
}
