//! `connections list`: lists the connected clients of an organization.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use serde_json::Value;

use super::watch::{WatchOptions, watch};
use super::{OrgArgs, OrgClient, field_names, short_time_field, text_field};
use crate::cli::block_on;
use crate::cli::output::{ListPrinter, OutputOption, Screen};
use crate::cli::rest_client::RestError;
use crate::cli::table::{Cell, Column, Table};
use crate::config::{CliEnvironment, cli_environment};

const PATH: [&str; 2] = ["v2", "connections"];
/// Maximum number of connections that one request returns.
const PAGE_SIZE: u64 = 1000;

const COLUMNS: [Column; 6] = [
    Column::elastic("CLIENT", 36),
    Column::new("CONNECTED (UTC)"),
    Column::elastic("FQDN", 12),
    Column::elastic("DISPATCHERS", 12).optional(),
    Column::elastic("VERSION", 8).optional(),
    Column::new("LAST SEEN (UTC)").optional(),
];

#[derive(Debug, Args)]
pub(in crate::cli) struct ListArgs {
    /// Maximum number of connections to list
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// List all connections
    #[arg(long = "all", conflicts_with = "limit")]
    lists_all: bool,
    #[command(flatten)]
    watch: WatchOptions,
    #[command(flatten)]
    output: OutputOption,
    // The heading of the filters applies to all following options without a heading.
    #[command(flatten)]
    filters: FilterArgs,
    #[command(flatten)]
    org: OrgArgs,
}

/// Only clients that match all filters are listed.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filters")]
struct FilterArgs {
    /// Client id or FQDN starts with this text
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
    /// The client has this dispatcher; can be repeated
    #[arg(long = "dispatcher", value_name = "NAME")]
    dispatchers: Vec<String>,
    /// The client has this tag; can be repeated
    #[arg(long = "tag", value_name = "KEY:VALUE", value_parser = key_value)]
    tags: Vec<String>,
    /// The client has this fact, for facts without an option; can be repeated
    #[arg(long = "fact", value_name = "KEY:VALUE", value_parser = key_value)]
    facts: Vec<String>,
    /// The FQDN is this text
    #[arg(long, value_name = "FQDN")]
    fqdn: Option<String>,
    /// The fact insights_id is this id
    #[arg(long, value_name = "ID")]
    insights_id: Option<String>,
    /// The fact machine_id is this id
    #[arg(long, value_name = "ID")]
    machine_id: Option<String>,
    /// The fact bios_uuid is this id
    #[arg(long, value_name = "ID")]
    bios_uuid: Option<String>,
    /// The fact subscription_manager_id is this id
    #[arg(long, value_name = "ID")]
    subscription_manager_id: Option<String>,
    /// The fact satellite_id is this id
    #[arg(long, value_name = "ID")]
    satellite_id: Option<String>,
    /// The client has this IP address
    #[arg(long, value_name = "ADDRESS")]
    ip_address: Option<String>,
    /// The client has this MAC address
    #[arg(long, value_name = "ADDRESS")]
    mac_address: Option<String>,
    /// The latest message of the client was received after this time, such as 2026-01-31T12:00:00Z; the
    /// stored time can be 5 minutes too early
    #[arg(long, value_name = "TIME", value_parser = utc_time)]
    seen_after: Option<String>,
    /// The latest message of the client was received before this time
    #[arg(long, value_name = "TIME", value_parser = utc_time)]
    seen_before: Option<String>,
}

/// Returns the time in the format of the REST API.
fn utc_time(text: &str) -> Result<String, String> {
    let time = text.parse::<Timestamp>();
    let time = time.map_err(|_| "the form is 2026-01-31T12:00:00Z (RFC 3339)")?;
    Ok(time.to_string())
}

fn key_value(text: &str) -> Result<String, String> {
    if text.contains(':') {
        Ok(text.to_owned())
    } else {
        Err("the form is KEY:VALUE".to_owned())
    }
}

impl FilterArgs {
    fn query(&self) -> Vec<(&'static str, &str)> {
        let lists = [
            ("dispatcher", &self.dispatchers),
            ("tag", &self.tags),
            ("fact", &self.facts),
        ];
        let lists = lists
            .into_iter()
            .flat_map(|(name, values)| values.iter().map(move |value| (name, value.as_str())));
        let single = [
            ("search", &self.search),
            ("fqdn", &self.fqdn),
            ("insights_id", &self.insights_id),
            ("machine_id", &self.machine_id),
            ("bios_uuid", &self.bios_uuid),
            ("subscription_manager_id", &self.subscription_manager_id),
            ("satellite_id", &self.satellite_id),
            ("ip_addresses", &self.ip_address),
            ("mac_addresses", &self.mac_address),
            ("seen_after", &self.seen_after),
            ("seen_before", &self.seen_before),
        ];
        let single = single
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.as_deref()?)));
        lists.chain(single).collect()
    }
}

pub(super) fn run(args: &ListArgs) -> Result<ExitCode> {
    let filters = args.filters.query();
    if filters.iter().any(|(_, value)| value.is_empty()) {
        let problem = "a filter is empty; give a value, or leave the option out";
        return Err(RestError::Usage(problem.to_owned()).into());
    }
    let environment = cli_environment();
    let screen = Screen::of_standard_output(&environment);
    block_on(async {
        if args.watch.is_watching {
            watch_list(args, &filters, &environment, screen).await
        } else {
            print_list(args, &filters, &environment, screen).await
        }
    })
}

/// Requests page after page, and prints each page when it arrives.
async fn print_list(
    args: &ListArgs,
    filters: &[(&str, &str)],
    environment: &CliEnvironment,
    screen: Screen,
) -> Result<ExitCode> {
    let client = OrgClient::new(&args.org, environment)?;
    let mut printer = ListPrinter::new(args.output.format);
    let mut table = Table::new(&COLUMNS, screen.colors, screen.width);
    let mut pages = Pages::new(args, filters);
    while let Some(connections) = pages.next(&client).await? {
        printer.print(&connections, |rows| table.render(&to_rows(rows)))?;
    }
    printer.finish("no connections")?;
    pages.report_rest();
    Ok(ExitCode::SUCCESS)
}

async fn watch_list(
    args: &ListArgs,
    filters: &[(&str, &str)],
    environment: &CliEnvironment,
    screen: Screen,
) -> Result<ExitCode> {
    let request = async || {
        // Finds the connector again, because a restarted connector can have another address.
        let client = OrgClient::new(&args.org, environment)?;
        let mut pages = Pages::new(args, filters);
        let mut connections = Vec::new();
        while let Some(page) = pages.next(&client).await? {
            connections.extend(page);
        }
        Ok::<_, RestError>(connections)
    };
    let format = args.output.format;
    watch(
        &args.watch,
        format,
        screen,
        request,
        |connections: &Vec<Value>| {
            let mut printer = ListPrinter::new(format);
            if !connections.is_empty() {
                let mut table = Table::new(&COLUMNS, screen.colors, screen.width);
                printer.print(connections, |rows| table.render(&to_rows(rows)))?;
            }
            printer.finish("no connections")
        },
    )
    .await?;
    Ok(ExitCode::SUCCESS)
}

/// The pages of a list.
struct Pages<'a> {
    filters: &'a [(&'a str, &'a str)],
    /// Number of connections that can still be listed. `None` lists all.
    remaining: Option<u64>,
    /// Cursor of the next page. `None` after the last page.
    cursor: Option<String>,
}

impl<'a> Pages<'a> {
    fn new(args: &ListArgs, filters: &'a [(&'a str, &'a str)]) -> Self {
        Self {
            filters,
            remaining: (!args.lists_all).then_some(args.limit),
            cursor: Some(String::new()),
        }
    }

    /// Requests the next page. Returns `None` at the end of the list, and at the limit.
    async fn next(&mut self, client: &OrgClient) -> Result<Option<Vec<Value>>, RestError> {
        let limit = self
            .remaining
            .map_or(PAGE_SIZE, |remaining| remaining.min(PAGE_SIZE));
        if limit == 0 {
            return Ok(None);
        }
        let Some(cursor) = self.cursor.take() else {
            return Ok(None);
        };
        let limit = limit.to_string();
        let mut query = vec![("cursor", cursor.as_str()), ("limit", limit.as_str())];
        query.extend(self.filters);
        let (connections, next_cursor) = client.get_page(&PATH, &query).await?;
        self.cursor = next_cursor;
        let count = u64::try_from(connections.len()).unwrap_or(u64::MAX);
        self.remaining = self
            .remaining
            .map(|remaining| remaining.saturating_sub(count));
        Ok(Some(connections).filter(|connections| !connections.is_empty()))
    }

    /// Prints a note if the list has further connections.
    fn report_rest(&self) {
        if self.cursor.is_some() {
            service::logs::print_error(
                "cloud-connector: there are more connections; list them with --all or a larger --limit",
            );
        }
    }
}

fn to_rows(connections: &[Value]) -> Vec<Vec<Cell>> {
    let row = |connection: &Value| {
        vec![
            Cell::new(text_field(connection, "client_id")),
            Cell::new(&short_time_field(connection, "connected_since")),
            Cell::new(text_field(&connection["canonical_facts"], "fqdn")),
            Cell::new(&field_names(&connection["dispatchers"])),
            Cell::new(text_field(connection, "client_version")),
            Cell::new(&short_time_field(connection, "last_seen")),
        ]
    };
    connections.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::terminal::Colors;
    use serde_json::json;

    fn table(width: Option<usize>) -> String {
        let connections = [
            json!({
                "client_id": "0a4b8d1e-5a26-4c4f-9d0c-3d2d0c6a9a01", "org_id": "10000",
                "canonical_facts": {"fqdn": "web-1.department.example.com"},
                "dispatchers": {"package-manager": {}, "rhc-worker-playbook": {"version": "1"}},
                "connected_since": "2026-01-31T11:57:00.5Z", "last_seen": "2026-01-31T12:00:00Z",
                "client_version": "0.2.4",
            }),
            json!({
                "client_id": "pc-1", "org_id": "10000", "dispatchers": {},
                "connected_since": "2026-01-30T10:00:00Z", "last_seen": "2026-01-31T12:00:00Z",
            }),
        ];
        Table::new(&COLUMNS, Colors::OFF, width).render(&to_rows(&connections))
    }

    #[test]
    fn a_terminal_of_80_columns_shows_the_most_important_columns() {
        insta::assert_snapshot!(table(Some(80)), @r"
        CLIENT                                CONNECTED (UTC)      FQDN
        0a4b8d1e-5a26-4c4f-9d0c-3d2d0c6a9a01  2026-01-31 11:57:00  web-1.department.exa…
        pc-1                                  2026-01-30 10:00:00
        ");
    }

    #[test]
    fn a_terminal_of_140_columns_shows_all_columns() {
        insta::assert_snapshot!(table(Some(140)), @r"
        CLIENT                                CONNECTED (UTC)      FQDN                       DISPATCHERS               VERSION  LAST SEEN (UTC)
        0a4b8d1e-5a26-4c4f-9d0c-3d2d0c6a9a01  2026-01-31 11:57:00  web-1.department.example…  package-manager,rhc-wor…  0.2.4    2026-01-31 12:00:00
        pc-1                                  2026-01-30 10:00:00                                                                2026-01-31 12:00:00
        ");
    }

    #[test]
    fn a_pipe_receives_all_values_uncut() {
        let text = table(None);
        assert!(!text.contains('…'), "{text}");
        for expected in [
            "web-1.department.example.com",
            "package-manager,rhc-worker-playbook",
            "0.2.4",
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn a_time_has_a_zone() {
        let time = utc_time("2026-01-31T14:00:00+02:00");
        assert_eq!(time.as_deref(), Ok("2026-01-31T12:00:00Z"));
        for text in ["2026-01-31T12:00:00", "yesterday", ""] {
            assert!(utc_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_tag_has_a_colon() {
        assert!(key_value("a:b:c").is_ok());
        assert!(key_value("a").is_err());
    }
}
