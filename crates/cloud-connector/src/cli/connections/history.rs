//! `connections history`: lists when a client was connected and disconnected.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use super::{OrgArgs, OrgClient, client_id_arg, short_time_field, status_color, text_field};
use crate::cli::block_on;
use crate::cli::output::{ListPrinter, OutputOption, Screen};
use crate::cli::table::{Cell, Column, Table};
use crate::config::cli_environment;

/// Maximum number of entries that one request returns.
const PAGE_SIZE: u64 = 1000;

const COLUMNS: [Column; 4] = [
    Column::new("TIME (UTC)"),
    Column::new("STATUS"),
    Column::elastic("REASON", 12),
    Column::new("NUMBER").right_aligned(),
];

#[derive(Debug, Args)]
pub(in crate::cli) struct HistoryArgs {
    /// Id of the client
    #[arg(value_name = "CLIENT")]
    client_id: String,
    /// Maximum number of entries to list
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    #[command(flatten)]
    output: OutputOption,
    #[command(flatten)]
    org: OrgArgs,
}

pub(super) fn run(args: &HistoryArgs) -> Result<ExitCode> {
    let client_id = client_id_arg(&args.client_id)?;
    let environment = cli_environment();
    let screen = Screen::of_standard_output(&environment);
    let client = OrgClient::new(&args.org, &environment)?;
    let path = ["v2", "connections", client_id.as_str(), "history"];
    let mut table = Table::new(&COLUMNS, screen.colors, screen.width);
    let mut printer = ListPrinter::new(args.output.format);
    let mut remaining = args.limit;
    let mut cursor = Some(String::new());
    block_on(async {
        while remaining > 0 {
            let Some(start) = cursor.take() else { break };
            let limit = remaining.min(PAGE_SIZE).to_string();
            let query = [("cursor", start.as_str()), ("limit", limit.as_str())];
            let page = client.get_page(&path, &query).await;
            let (entries, next_cursor) =
                page.map_err(|error| client.explain_not_found(error, &client_id, "has no client"))?;
            if entries.is_empty() {
                break;
            }
            printer.print(&entries, |entries| table.render(&to_rows(entries)))?;
            remaining = remaining.saturating_sub(u64::try_from(entries.len()).unwrap_or(u64::MAX));
            cursor = next_cursor;
        }
        Ok(())
    })?;
    printer.finish("no history")?;
    if cursor.is_some() {
        service::logs::print_error(
            "cloud-connector: there are older entries; list them with a larger --limit",
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn to_rows(entries: &[Value]) -> Vec<Vec<Cell>> {
    let row = |entry: &Value| {
        let status = text_field(entry, "status");
        vec![
            Cell::new(&short_time_field(entry, "at")),
            Cell::colored(status, status_color(status)),
            Cell::new(text_field(entry, "reason")),
            Cell::new(&entry["number"].to_string()),
        ]
    };
    entries.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::terminal::Colors;
    use serde_json::json;

    #[test]
    fn the_table_has_one_row_per_entry() {
        let entries = [
            json!({"number": 12, "at": "2026-01-31T12:00:00.123Z", "status": "online",
                "reason": "connected"}),
            json!({"number": 9, "at": "2026-01-31T11:57:00Z", "status": "offline",
                "reason": "broker-restart"}),
        ];
        let table = |width| Table::new(&COLUMNS, Colors::OFF, width).render(&to_rows(&entries));
        insta::assert_snapshot!(table(Some(80)), @r"
        TIME (UTC)           STATUS   REASON          NUMBER
        2026-01-31 12:00:00  online   connected           12
        2026-01-31 11:57:00  offline  broker-restart       9
        ");
        assert_eq!(table(Some(140)), table(Some(80)));
        assert_eq!(table(None), table(Some(80)));
    }
}
