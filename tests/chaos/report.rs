//! What a failure prints: for some of the clients, all that they said and all that is known of them.

use std::collections::BTreeSet;

use crate::check::{ObservedState, Row};
use crate::link::Entry;
use crate::run::{Failure, Run};

/// More of them would only hide the first.
const CLIENTS_SHOWN: usize = 5;
const BYTES_SHOWN: usize = 300;

pub fn failure(run: &Run, failure: &Failure) {
    let kind = run.kind.name();
    println!("chaos {kind}: FAILED: {}", failure.why);
    let mut names: Vec<&str> = Vec::new();
    for difference in &failure.differences {
        if !names.contains(&difference.client.as_str()) {
            names.push(&difference.client);
        }
    }
    if !names.is_empty() {
        println!(
            "  {} differences in {} clients",
            failure.differences.len(),
            names.len()
        );
    }
    let round = run.tally.rounds;
    println!("  faults of round {round}:");
    for fault in run.faults.lock().iter() {
        println!("    {fault}");
    }
    for name in names.iter().take(CLIENTS_SHOWN) {
        println!("  client {name} (round {round}):");
        for difference in failure.differences.iter().filter(|d| d.client == *name) {
            println!("    {}", difference.what);
        }
        client(run, name, failure.seen.as_ref());
    }
}

fn client(run: &Run, name: &str, seen: Option<&ObservedState>) {
    let Some(watched) = run.fleet.iter().find(|watched| watched.manner.name == name) else {
        return;
    };
    let story = watched.story.lock();
    println!("    is        {:?}", watched.manner);
    match story.model.row() {
        Some(word) => println!("    expected  {word:?}"),
        None => println!(
            "    expected  no row; its last online was {:?}",
            story.model.word
        ),
    }
    if let Some(seen) = seen {
        let row = seen.rows.get(name).map(|row: &Row| format!("{row:?}"));
        println!("    row       {}", row.unwrap_or_else(|| "none".to_owned()));
        for ((org, _), shown) in seen.listed.iter().filter(|((_, client), _)| client == name) {
            println!("    list of {org}  {shown}");
        }
        let none = BTreeSet::new();
        for (topic, hash) in seen.letters.get(name).unwrap_or(&none) {
            println!("    dead letter  {topic} sha256 {hash}");
        }
    }
    println!("    what it did, by connection:");
    for entry in &story.log {
        print_entry(entry);
    }
}

fn print_entry(entry: &Entry) {
    let Entry {
        at,
        connection,
        what,
        message,
    } = entry;
    match message {
        None => println!("      {at:.6} #{connection} {what}"),
        Some(message) => {
            let text = String::from_utf8_lossy(&message.bytes);
            let text: String = text.chars().take(BYTES_SHOWN).collect();
            let retained = if message.retain { " retained" } else { "" };
            println!(
                "      {at:.6} #{connection} {what}: {}{retained} {text:?}",
                message.topic
            );
        }
    }
}
