//! Prints the failure report. For the first clients with mismatches, the report contains the
//! expected state, the observed state and the log.

use std::collections::BTreeSet;

use crate::check::{ConnectionRow, ObservedState};
use crate::connection::LogEntry;
use crate::run::{Failure, Run};

/// Maximum number of clients in the report. More clients would make the report too long to read.
const MAX_REPORTED_CLIENTS: usize = 5;
const MAX_PAYLOAD_CHARS: usize = 300;

pub fn print_failure(run: &Run, failure: &Failure) {
    println!("chaos {}: FAILED: {}", run.mode.as_str(), failure.reason);
    let mut client_ids: Vec<&str> = Vec::new();
    for mismatch in &failure.mismatches {
        if !client_ids.contains(&mismatch.client_id.as_str()) {
            client_ids.push(&mismatch.client_id);
        }
    }
    if !client_ids.is_empty() {
        println!(
            "  {} mismatches in {} clients",
            failure.mismatches.len(),
            client_ids.len()
        );
    }
    let round = run.totals.rounds;
    println!("  faults of round {round}:");
    for fault in run.fault_log.lock().iter() {
        println!("    {fault}");
    }
    for client_id in client_ids.iter().take(MAX_REPORTED_CLIENTS) {
        println!("  client {client_id} (round {round}):");
        let mismatches = failure.mismatches.iter();
        for mismatch in mismatches.filter(|mismatch| mismatch.client_id == *client_id) {
            println!("    {}", mismatch.description);
        }
        print_client(run, client_id, failure.observed.as_ref());
    }
}

fn print_client(run: &Run, client_id: &str, observed: Option<&ObservedState>) {
    let mut clients = run.tracked_clients.iter();
    let Some(client) = clients.find(|client| client.profile.client_id == client_id) else {
        return;
    };
    let history = client.history.lock();
    println!("    profile   {:?}", client.profile);
    match history.expected.expected_row_content() {
        Some(online) => println!("    expected  {online:?}"),
        None => println!(
            "    expected  no row; the latest online message was {:?}",
            history.expected.latest_online
        ),
    }
    if let Some(observed) = observed {
        let row = observed.rows.get(client_id);
        let row = row.map(|row: &ConnectionRow| format!("{row:?}"));
        println!("    row       {}", row.unwrap_or_else(|| "none".to_owned()));
        for ((org_id, id), item) in &observed.listed_connections {
            if id == client_id {
                println!("    list of {org_id}  {item}");
            }
        }
        let no_dead_letters = BTreeSet::new();
        for (topic, sha256) in observed
            .dead_letters
            .get(client_id)
            .unwrap_or(&no_dead_letters)
        {
            println!("    dead letter  {topic} sha256 {sha256}");
        }
    }
    println!("    log (time, connection, event):");
    for entry in &history.log {
        print_log_entry(entry);
    }
}

fn print_log_entry(entry: &LogEntry) {
    let LogEntry {
        time,
        connection_number,
        event,
        message,
    } = entry;
    match message {
        None => println!("      {time:.6} #{connection_number} {event}"),
        Some(message) => {
            let payload = String::from_utf8_lossy(&message.payload);
            let payload: String = payload.chars().take(MAX_PAYLOAD_CHARS).collect();
            let retained = if message.retain { " retained" } else { "" };
            println!(
                "      {time:.6} #{connection_number} {event}: {}{retained} {payload:?}",
                message.topic
            );
        }
    }
}
