//! The diagnosis as text for people, with lines of at most 80 characters.

use jiff::Timestamp;
use serde_json::Value;

use super::diagnosis::{BrokerRejection, DeadLetter, Diagnosis, HistoryEntry, TenantLookup};
use crate::cli::escape_for_terminal;
use crate::cli::terminal::{Color, Colors, LINE_WIDTH, relative_text, utc_text, wrap};

/// Maximum number of rows of each list.
const MAX_ROWS: usize = 5;
/// Start column of the values of facts and of the details of list rows.
const VALUE_COLUMN: usize = 19;
const INDENT: &str = "  ";

/// Returns the text of the diagnosis.
pub(super) fn render(diagnosis: &Diagnosis, now: Timestamp, colors: Colors) -> String {
    let mut page = Page {
        text: String::new(),
        now,
        org_id: diagnosis.org_id.as_ref(),
    };
    page.paragraph(&diagnosis.summary);
    page.facts(diagnosis, colors);
    page.list("Dead letters", &diagnosis.dead_letters, Page::dead_letter);
    page.list(
        "Rejected by the broker",
        &diagnosis.broker_rejections,
        Page::broker_rejection,
    );
    page.list("History", &diagnosis.history, Page::history_entry);
    if let Some(suggestion) = &diagnosis.suggestion {
        page.text.push('\n');
        page.paragraph(&format!("Suggestion: {suggestion}"));
    }
    page.text
}

struct Page<'a> {
    text: String,
    now: Timestamp,
    /// The organization of the client.
    org_id: Option<&'a String>,
}

impl Page<'_> {
    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    fn paragraph(&mut self, text: &str) {
        for line in wrap(&escape_for_terminal(text), LINE_WIDTH) {
            self.line(&line);
        }
    }

    fn facts(&mut self, diagnosis: &Diagnosis, colors: Colors) {
        self.text.push('\n');
        let color = match diagnosis.state.as_str() {
            "connected" => Color::Green,
            "tenantless" => Color::Yellow,
            _ => Color::Red,
        };
        // The color is added after the line is complete, because escape sequences have no width.
        let state = escape_for_terminal(&diagnosis.state);
        let label = label("State");
        self.line(&format!("{label}{}", colors.paint(color, &state)));
        if let Some(org_id) = &diagnosis.org_id {
            let account = diagnosis.account.as_ref().filter(|text| !text.is_empty());
            let account = account.map(|account| format!(" (account {account})"));
            self.fact(
                "Organization",
                &format!("{org_id}{}", account.unwrap_or_default()),
            );
        }
        let client_parts = [&diagnosis.client_name, &diagnosis.client_version];
        let client_parts: Vec<&str> = client_parts
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect();
        if !client_parts.is_empty() {
            self.fact("Client", &client_parts.join(" "));
        }
        for (name, time) in [
            ("Connected since", &diagnosis.connected_since),
            ("Last seen", &diagnosis.last_seen),
            ("Disconnected", &diagnosis.disconnected_at),
        ] {
            if let Some(time) = time {
                let time = self.time_with_distance(time);
                self.fact(name, &time);
            }
        }
        if let Some(reason) = &diagnosis.reason {
            self.fact("Reason", &explain_reason(reason));
        }
        if let Some(text) = Self::reconnects(diagnosis) {
            self.fact("Reconnects", &text);
        }
        if let Some(lookup) = &diagnosis.tenant_lookup {
            let text = self.tenant_lookup(lookup);
            self.fact("Tenant lookup", &text);
        }
    }

    /// Adds a line with a label and a value. A long value continues in the column of the value.
    fn fact(&mut self, name: &str, value: &str) {
        self.labeled(&label(name), value);
    }

    fn labeled(&mut self, first_label: &str, value: &str) {
        let lines = wrap(&escape_for_terminal(value), LINE_WIDTH - VALUE_COLUMN);
        for (index, line) in lines.iter().enumerate() {
            let label = if index == 0 { first_label } else { "" };
            self.line(&format!("{label:VALUE_COLUMN$}{line}"));
        }
    }

    fn reconnects(diagnosis: &Diagnosis) -> Option<String> {
        let mut parts = Vec::new();
        if let Some(count) = diagnosis.reconnects {
            parts.push(format!("{count} in total"));
        }
        if let Some(recent) = &diagnosis.recent_reconnects
            && let Some(count) = recent.count
        {
            let since = recent.since.as_ref().map(|time| time_text(time));
            let since = since.map_or_else(|| "recently".to_owned(), |time| format!("since {time}"));
            parts.push(format!("{count} {since}"));
        }
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    fn tenant_lookup(&self, lookup: &TenantLookup) -> String {
        let mut parts = Vec::new();
        match (lookup.failed_lookups, lookup.max_failed_lookups) {
            (Some(failed), Some(max)) => parts.push(format!("{failed} of {max} lookups failed")),
            (Some(failed), None) => parts.push(format!("{failed} lookups failed")),
            (None, _) => {}
        }
        if lookup.gave_up == Some(true) {
            parts.push("gave up".to_owned());
        }
        if let Some(time) = &lookup.last_lookup_at {
            parts.push(format!("last {}", self.time_with_distance(time)));
        }
        if let Some(time) = &lookup.next_lookup_at {
            parts.push(format!("next {}", self.time_with_distance(time)));
        }
        if parts.is_empty() {
            parts.push("no information".to_owned());
        }
        parts.join("; ")
    }

    /// Adds a list with its heading. An empty list is omitted.
    fn list<T>(&mut self, heading: &str, rows: &[T], add_row: impl Fn(&mut Self, &T)) {
        if rows.is_empty() {
            return;
        }
        self.text.push('\n');
        self.line(heading);
        for row in rows.iter().take(MAX_ROWS) {
            add_row(self, row);
        }
        if rows.len() > MAX_ROWS {
            let hidden_count = rows.len() - MAX_ROWS;
            self.line(&format!(
                "{INDENT}and {hidden_count} more; -o json prints all"
            ));
        }
    }

    fn dead_letter(&mut self, row: &DeadLetter) {
        let id = match &row.id {
            Value::Null => None,
            Value::String(id) => Some(format!("[{id}]")),
            id => Some(format!("[{id}]")),
        };
        let occurrences = row.occurrences.filter(|count| *count > 1);
        let occurrences = occurrences.map(|count| format!(" ({count} times)"));
        let detail = row.detail.as_ref().map(|detail| format!(": {detail}"));
        let reason = [row.reason.clone(), occurrences, detail];
        let reason: String = reason.into_iter().flatten().collect();
        let topic = row.topic.as_ref().map(|topic| format!("on {topic}"));
        self.row(row.last_received.as_ref(), [id, Some(reason), topic]);
    }

    fn broker_rejection(&mut self, row: &BrokerRejection) {
        let peer = row.peer.as_ref().map(|peer| format!("from {peer}"));
        self.row(row.at.as_ref(), [row.reason.clone(), peer]);
    }

    fn history_entry(&mut self, row: &HistoryEntry) {
        let reason = row.reason.as_ref().map(|reason| format!("({reason})"));
        // Most clients stay in one organization.
        let other_org_id = row.org_id.as_ref().filter(|id| self.org_id != Some(*id));
        let org_id = other_org_id.map(|id| format!("in organization {id}"));
        let number = row.number.map(|number| format!("#{number}"));
        self.row(
            row.at.as_ref(),
            [number, row.status.clone(), reason, org_id],
        );
    }

    /// Adds a row of a list: the distance of its time, and below each other the time and details.
    fn row<const N: usize>(&mut self, time: Option<&String>, details: [Option<String>; N]) {
        let distance = time.and_then(|time| time.parse().ok());
        let distance = distance.map(|time| relative_text(time, self.now));
        let time = time.map(|time| format!("{}:", time_text(time)));
        let parts: Vec<String> = time
            .into_iter()
            .chain(details.into_iter().flatten())
            .collect();
        self.labeled(&label(&distance.unwrap_or_default()), &parts.join(" "));
    }

    fn time_with_distance(&self, text: &str) -> String {
        match text.parse::<Timestamp>() {
            Ok(time) => format!("{} ({})", utc_text(time), relative_text(time, self.now)),
            Err(_) => text.to_owned(),
        }
    }
}

/// Returns the time in UTC. Returns a text that is not a time unchanged.
fn time_text(text: &str) -> String {
    text.parse().map_or_else(|_| text.to_owned(), utc_text)
}

/// Returns the name, filled up to the column of the values.
fn label(name: &str) -> String {
    format!("{:VALUE_COLUMN$}", format!("{INDENT}{name}"))
}

/// Returns the reason of a presence change with an explanation. Returns an unknown reason unchanged.
fn explain_reason(reason: &str) -> String {
    let explanation = match reason {
        "client" => "the client sent an offline message",
        "will" => "the connection was lost and the last will was published",
        "disconnected" => "an API caller disconnected the client",
        "expired" => "the client did not respond to pings",
        "broker-restart" => "the client did not reconnect after a restart of the broker",
        "tenant-lost" => "the tenant lookup no longer finds an organization",
        "moved" => "the client now belongs to another organization",
        _ => return reason.to_owned(),
    };
    format!("{reason}: {explanation}")
}

#[cfg(test)]
mod tests;
