//! Presence transitions of online messages: the counters of the row, the history and the events.
//!
//! The store derives the transitions of all other messages from the rows that it changes.

use std::time::Duration;

use super::presence::TransitionCounts;
use domain::{ClientId, ClientInfo, OfflineReason, OnlineCause, Tenant, Timestamp};
use store::{
    ContentHashes, HistoryRow, NewEvent, PresenceColumns, StoredState, Transition, event_data,
};

/// Reconnects are counted in periods of this duration.
const RECONNECT_PERIOD: Duration = Duration::from_hours(1);

/// An online message of a client, and the state before it.
pub(super) struct OnlineChange<'a> {
    pub client: &'a ClientId,
    pub info: &'a ClientInfo,
    pub stored_state: Option<&'a StoredState>,
    /// The client's tenant after the message. `None` for a tenantless client.
    pub tenant: Option<&'a Tenant>,
    pub received_at: Timestamp,
    /// Time of the batch. No history row and no event has a later time, even if this host's clock was
    /// wrong and the receive times of the client are raised to keep their order.
    pub now: Timestamp,
    /// Receive time of the client's latest message.
    pub last_seen: Timestamp,
    /// Whether the store writes events. If not, none are built.
    pub writes_events: bool,
    /// Changes between connected and disconnected in the batch.
    pub counts: TransitionCounts,
}

/// The rows that an online message causes.
#[derive(Debug, Default, PartialEq)]
pub(super) struct OnlineRows {
    pub presence: PresenceColumns,
    pub history: Vec<HistoryRow>,
    pub events: Vec<NewEvent>,
}

impl OnlineChange<'_> {
    /// Returns the rows.
    pub fn rows(&self) -> OnlineRows {
        let connection = self
            .stored_state
            .and_then(|state| state.connection.as_ref());
        let disconnect = self
            .stored_state
            .and_then(|state| state.disconnect.as_ref());
        let (before, previous_tenant) = match (connection, disconnect) {
            (Some(row), _) => (Some(&row.presence), row.tenant.as_ref()),
            (None, Some(row)) => (Some(&row.presence), row.tenant.as_ref()),
            (None, None) => (None, None),
        };
        let was_connected = connection.is_some();
        let same_org = previous_tenant.map(|tenant| &tenant.org_id)
            == self.tenant.map(|tenant| &tenant.org_id);
        let hashes = ContentHashes::new(self.info);
        let mut rows = OnlineRows {
            presence: self.presence_columns(before, same_org, hashes),
            ..OnlineRows::default()
        };
        // A row of an earlier version has no `connected_since`.
        let connected_since = before
            .and_then(|before| before.connected_since)
            .or_else(|| connection.map(|row| row.received_at.time));
        if was_connected && same_org {
            rows.presence.connected_since = connected_since;
            if self.counts.takeovers > 0 {
                let history_row = self.history_row(&rows, self.tenant, Transition::Takeover);
                rows.history.push(history_row);
            }
            let previous_hashes = before.and_then(|before| before.content_hashes);
            if let (Some(tenant), Some(previous)) = (self.tenant, previous_hashes)
                && self.writes_events
                && previous != hashes
            {
                let changed = previous.changed_parts(&hashes);
                let data = event_data::updated(self.info, &changed);
                let mut event = self.event(tenant, event_data::UPDATED, data);
                event.dispatchers_changed = previous.dispatchers_differ(&hashes);
                rows.events.push(event);
            }
            return rows;
        }
        if was_connected && let Some(lost) = previous_tenant {
            let reason = if self.tenant.is_some() {
                OfflineReason::Moved
            } else {
                OfflineReason::TenantLost
            };
            self.add_transition(&mut rows, Some(lost), Transition::Offline(reason));
            if self.writes_events {
                let connected_for = connected_since
                    .map_or(0, |since| self.received_at.duration_since(since).as_secs());
                // The new dispatchers belong to the new organization. The store adds the last ones.
                let data = event_data::offline(reason, connected_for, &serde_json::Value::Null);
                let mut event = self.event(lost, event_data::OFFLINE, data);
                event.dispatchers_changed = true;
                rows.events.push(event);
            }
        }
        if !was_connected || self.tenant.is_some() {
            let cause = if was_connected && previous_tenant.is_none() {
                OnlineCause::TenantFound
            } else {
                OnlineCause::Connected
            };
            if let Some(tenant) = self.tenant
                && self.writes_events
            {
                let data = event_data::online(self.info, cause);
                rows.events
                    .push(self.event(tenant, event_data::ONLINE, data));
            }
            if was_connected {
                self.add_transition(&mut rows, self.tenant, Transition::Online(cause));
            } else {
                // The counts of the batch include this transition.
                let history_row = self.history_row(&rows, self.tenant, Transition::Online(cause));
                rows.history.push(history_row);
            }
        }
        rows
    }

    /// Returns the number of the client's latest transition. The client's row need not have it: the Go
    /// implementation inserts rows without a count, and deletes rows without their history.
    fn latest_transition(&self) -> u64 {
        let Some(state) = self.stored_state else {
            return 0;
        };
        let connection = state.connection.as_ref().map(|row| &row.presence);
        let disconnect = state.disconnect.as_ref().map(|row| &row.presence);
        let rows = connection.into_iter().chain(disconnect);
        let counts = rows.map(|presence| presence.transition_count);
        counts.fold(state.latest_transition, u64::max)
    }

    fn presence_columns(
        &self,
        before: Option<&PresenceColumns>,
        same_org: bool,
        hashes: ContentHashes,
    ) -> PresenceColumns {
        let is_known = before.is_some();
        let mut before = before.cloned().unwrap_or_default();
        before.transition_count = self.latest_transition();
        // The first connection of a client is not a reconnect.
        let reconnects = self.counts.connects.saturating_sub(u64::from(!is_known));
        let period_start = before.hourly_reconnects_since.filter(|since| {
            let age = self.received_at.duration_since(*since);
            age.is_negative() || age.unsigned_abs() < RECONNECT_PERIOD
        });
        let (hourly_reconnects, hourly_reconnects_since) = match period_start {
            Some(since) => (before.hourly_reconnects + reconnects, Some(since)),
            None => (reconnects, (reconnects > 0).then_some(self.received_at)),
        };
        PresenceColumns {
            connected_since: Some(self.received_at),
            last_seen: Some(self.last_seen),
            reconnects: if same_org || !is_known {
                before.reconnects + reconnects
            } else {
                0
            },
            hourly_reconnects,
            hourly_reconnects_since,
            transition_count: before.transition_count + self.counts.all,
            content_hashes: Some(hashes),
        }
    }

    /// Counts a transition between organizations, and adds its history row.
    fn add_transition(
        &self,
        rows: &mut OnlineRows,
        tenant: Option<&Tenant>,
        transition: Transition,
    ) {
        rows.presence.transition_count += 1;
        let history_row = self.history_row(rows, tenant, transition);
        rows.history.push(history_row);
    }

    fn history_row(
        &self,
        rows: &OnlineRows,
        tenant: Option<&Tenant>,
        transition: Transition,
    ) -> HistoryRow {
        HistoryRow {
            client_id: self.client.clone(),
            number: rows.presence.transition_count,
            at: self.received_at.min(self.now),
            tenant: tenant.cloned(),
            transition,
        }
    }

    fn event(
        &self,
        tenant: &Tenant,
        event_type: &'static str,
        data: serde_json::Value,
    ) -> NewEvent {
        NewEvent {
            client_id: self.client.clone(),
            tenant: tenant.clone(),
            at: self.received_at.min(self.now),
            event_type,
            data,
            dispatchers_changed: false,
        }
    }
}

#[cfg(test)]
mod tests;
