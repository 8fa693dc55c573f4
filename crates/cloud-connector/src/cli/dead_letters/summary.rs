//! `dead-letters summary`: prints totals per reason.

use std::collections::HashSet;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::cli::output::{OutputOption, Screen, print_document};
use crate::cli::table::{Cell, Column, Table};
use crate::cli::{ConfigSource, block_on};
use crate::config::cli_environment;
use crate::runtime;
use domain::{RejectReason, Timestamp};
use store::{DeadLetterFilter, DeadLetterRepository, StoredDeadLetter};

/// Maximum number of dead letters of one reason that are read. By default, a connector stores 10,000 dead
/// letters of all reasons.
const MAX_READ: u32 = 20_000;

const COLUMNS: [Column; 6] = [
    Column::new("REASON"),
    Column::new("DEAD LETTERS").right_aligned(),
    Column::new("OCCURRENCES").right_aligned(),
    Column::new("CLIENTS").right_aligned(),
    Column::new("LAST RECEIVED"),
    Column::elastic("MEANING", 20).optional(),
];

#[derive(Debug, Args)]
pub(in crate::cli) struct SummaryArgs {
    #[command(flatten)]
    config_source: ConfigSource,
    #[command(flatten)]
    output: OutputOption,
}

/// The dead letters with one reason.
#[derive(Debug, Default, PartialEq, Eq)]
struct Totals {
    dead_letters: usize,
    occurrences: u64,
    clients: HashSet<String>,
    last_received: Option<Timestamp>,
    /// Whether there are more dead letters than were read.
    is_incomplete: bool,
}

impl Totals {
    fn of(dead_letters: &[StoredDeadLetter]) -> Self {
        let client_ids = dead_letters
            .iter()
            .filter_map(|letter| letter.client.as_ref());
        Self {
            dead_letters: dead_letters.len(),
            occurrences: dead_letters.iter().map(|letter| letter.occurrences).sum(),
            clients: client_ids.map(|id| id.as_str().to_owned()).collect(),
            last_received: dead_letters.iter().map(|letter| letter.last_received).max(),
            is_incomplete: dead_letters.len() >= usize::try_from(MAX_READ).unwrap_or(usize::MAX),
        }
    }

    fn add(&mut self, other: &Self) {
        self.dead_letters += other.dead_letters;
        self.occurrences += other.occurrences;
        self.clients.extend(other.clients.iter().cloned());
        self.last_received = self.last_received.max(other.last_received);
        self.is_incomplete |= other.is_incomplete;
    }

    fn to_json(&self, reason: Option<RejectReason>) -> Value {
        let mut json = json!({
            "dead_letters": self.dead_letters,
            "occurrences": self.occurrences,
            "clients": self.clients.len(),
            "last_received": self.last_received,
            "is_incomplete": self.is_incomplete,
        });
        if let Some(reason) = reason {
            json["reason"] = json!(reason.as_str());
        }
        json
    }

    fn to_row(&self, label: &str, meaning: &str) -> Vec<Cell> {
        let more = if self.is_incomplete { "+" } else { "" };
        let last_received = self.last_received.map(|time| format!("{time:.0}"));
        vec![
            Cell::new(label),
            Cell::new(&format!("{}{more}", self.dead_letters)),
            Cell::new(&format!("{}{more}", self.occurrences)),
            Cell::new(&format!("{}{more}", self.clients.len())),
            Cell::new(last_received.as_deref().unwrap_or("-")),
            Cell::new(meaning),
        ]
    }
}

pub(super) fn run(args: &SummaryArgs) -> Result<ExitCode> {
    let config = args.config_source.load()?.config;
    let totals = block_on(async {
        let repositories = runtime::open_store_for_cli(&config).await?;
        let totals = read_totals(&*repositories.dead_letters).await;
        repositories.maintenance.close().await;
        totals
    })?;
    let mut total = Totals::default();
    for (_, totals) in &totals {
        total.add(totals);
    }
    let reasons: Vec<Value> = totals
        .iter()
        .map(|(reason, totals)| totals.to_json(Some(*reason)))
        .collect();
    let document = json!({"reasons": reasons, "total": total.to_json(None)});
    let screen = Screen::of_standard_output(&cli_environment());
    print_document(args.output.format, &document, || {
        to_text(&totals, &total, screen)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the totals of each reason that has dead letters. The largest number of occurrences comes first.
async fn read_totals(
    dead_letters: &dyn DeadLetterRepository,
) -> Result<Vec<(RejectReason, Totals)>> {
    let mut all = Vec::new();
    for reason in RejectReason::ALL {
        let filter = DeadLetterFilter {
            reason: Some(reason),
            ..DeadLetterFilter::default()
        };
        let totals = Totals::of(&dead_letters.list_dead_letters(&filter, MAX_READ).await?);
        if totals.dead_letters > 0 {
            all.push((reason, totals));
        }
    }
    all.sort_by_key(|(_, totals)| std::cmp::Reverse(totals.occurrences));
    Ok(all)
}

fn to_text(totals: &[(RejectReason, Totals)], total: &Totals, screen: Screen) -> String {
    if totals.is_empty() {
        return "no dead letters\n".to_owned();
    }
    let mut rows: Vec<Vec<Cell>> = totals
        .iter()
        .map(|(reason, totals)| totals.to_row(reason.as_str(), reason.description()))
        .collect();
    rows.push(total.to_row("total", ""));
    Table::new(&COLUMNS, screen.colors, screen.width).render(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::terminal::Colors;

    fn totals(dead_letters: usize, clients: &[&str], last_received: &str) -> Totals {
        Totals {
            dead_letters,
            occurrences: 10 * u64::try_from(dead_letters).unwrap(),
            clients: clients.iter().map(|id| (*id).to_owned()).collect(),
            last_received: Some(last_received.parse().unwrap()),
            is_incomplete: dead_letters > 1000,
        }
    }

    fn text(width: Option<usize>) -> String {
        let all = [
            (
                RejectReason::ALL[0],
                totals(20_000, &["a", "b"], "2026-01-31T12:00:00.5Z"),
            ),
            (
                RejectReason::ALL[1],
                totals(7, &["b"], "2026-01-30T12:00:00Z"),
            ),
        ];
        let mut total = Totals::default();
        for (_, totals) in &all {
            total.add(totals);
        }
        to_text(
            &all,
            &total,
            Screen {
                colors: Colors::OFF,
                width,
            },
        )
    }

    #[test]
    fn the_table_ends_with_the_total_and_fits_80_columns() {
        insta::assert_snapshot!(text(Some(80)), @r"
        REASON          DEAD LETTERS  OCCURRENCES  CLIENTS  LAST RECEIVED
        invalid_json          20000+      200000+       2+  2026-01-31T12:00:00Z
        invalid_schema             7           70        1  2026-01-30T12:00:00Z
        total                 20007+      200070+       2+  2026-01-31T12:00:00Z
        ");
    }

    #[test]
    fn a_wide_table_explains_the_reasons() {
        insta::assert_snapshot!(text(Some(140)), @r"
        REASON          DEAD LETTERS  OCCURRENCES  CLIENTS  LAST RECEIVED         MEANING
        invalid_json          20000+      200000+       2+  2026-01-31T12:00:00Z  The payload is not valid JSON.
        invalid_schema             7           70        1  2026-01-30T12:00:00Z  A field of the message is missing, has the wrong type, or is nest…
        total                 20007+      200070+       2+  2026-01-31T12:00:00Z
        ");
    }

    #[test]
    fn no_dead_letters_are_not_an_empty_table() {
        let screen = Screen {
            colors: Colors::OFF,
            width: Some(80),
        };
        assert_eq!(
            to_text(&[], &Totals::default(), screen),
            "no dead letters\n"
        );
    }
}
