//! The statements that write presence history and events. Their parameter is a JSON array of arrays.

use std::collections::HashMap;

use serde_json::json;

use store::{HistoryRow, NewEvent, event_data};

store::statements! {
    pub(crate) WRITE_HISTORY =
        "INSERT OR REPLACE INTO presence_history (client_id, number, at, org_id, status, reason)
         SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5
           FROM json_each($1)";

    pub(crate) WRITE_EVENTS =
        "INSERT INTO events (at, type, org_id, account, client_id, data, previous_dispatchers)
         SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6
           FROM json_each($1) ORDER BY key";

    pub(crate) PREVIOUS_DISPATCHERS =
        "SELECT client_id, dispatchers FROM connections
          WHERE client_id IN (SELECT value FROM json_each($1))";
}

pub(crate) fn history_parameter(rows: &[HistoryRow]) -> String {
    let row = |row: &HistoryRow| {
        json!([
            row.client_id.as_str(),
            row.number,
            row.at.as_microsecond(),
            row.org_id(),
            row.transition.status(),
            row.transition.reason(),
        ])
    };
    json!(rows.iter().map(row).collect::<Vec<_>>()).to_string()
}

/// `previous_dispatchers` has the stored dispatchers of the clients whose dispatchers change. They are the last
/// dispatchers of an offline event.
pub(crate) fn events_parameter(
    rows: &[NewEvent],
    previous_dispatchers: &HashMap<String, String>,
) -> String {
    let row = |event: &NewEvent| {
        let stored = previous_dispatchers.get(event.client_id.as_str());
        let mut previous = stored.filter(|_| event.dispatchers_changed);
        let mut data = event.data.clone();
        if event.event_type == event_data::OFFLINE
            && let Some(last) = previous.take()
        {
            data["dispatchers"] = serde_json::from_str(last).unwrap_or_default();
        }
        json!([
            event.at.as_microsecond(),
            event.event_type,
            event.tenant.org_id.as_str(),
            event.tenant.account,
            event.client_id.as_str(),
            data.to_string(),
            previous,
        ])
    };
    json!(rows.iter().map(row).collect::<Vec<_>>()).to_string()
}
