//! `connections show`: shows everything that is stored about a client.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use serde_json::Value;

use super::watch::{WatchOptions, watch};
use super::{OrgArgs, OrgClient, client_id_arg, status_color, text_field};
use crate::cli::block_on;
use crate::cli::output::{OutputOption, Screen, print_document};
use crate::cli::table::{Cell, Column, Table};
use crate::cli::terminal::{relative_text, utc_text};
use crate::config::cli_environment;

const COLUMNS: [Column; 2] = [Column::elastic("", 12), Column::elastic("", 12)];
const INDENT: &str = "  ";

#[derive(Debug, Args)]
pub(in crate::cli) struct ShowArgs {
    /// Id of the client
    #[arg(value_name = "CLIENT")]
    client_id: String,
    #[command(flatten)]
    watch: WatchOptions,
    #[command(flatten)]
    output: OutputOption,
    #[command(flatten)]
    org: OrgArgs,
}

pub(super) fn run(args: &ShowArgs) -> Result<ExitCode> {
    let client_id = client_id_arg(&args.client_id)?;
    let environment = cli_environment();
    let screen = Screen::of_standard_output(&environment);
    let format = args.output.format;
    let print = |client: &Value| {
        print_document(format, client, || to_text(client, Timestamp::now(), screen))
    };
    let request = async || {
        // Finds the connector again, because a restarted connector can have another address.
        let client = OrgClient::new(&args.org, &environment)?;
        client.get_of_client(&client_id).await
    };
    block_on(async {
        if args.watch.is_watching {
            watch(&args.watch, format, screen, request, print).await
        } else {
            print(&request().await?)
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

fn to_text(client: &Value, now: Timestamp, screen: Screen) -> String {
    let status = text_field(client, "status");
    let mut rows = vec![
        row("client", text_field(client, "client_id")),
        vec![
            Cell::new("status"),
            Cell::colored(status, status_color(status)),
        ],
    ];
    let mut add = |label: &str, value: &str| {
        if !value.is_empty() {
            rows.push(row(label, value));
        }
    };
    let time = |name: &str| time_text(text_field(client, name), now);
    add("disconnected at", &time("disconnected_at"));
    add("reason", text_field(client, "reason"));
    add("organization", text_field(client, "org_id"));
    add("account", text_field(client, "account"));
    add("connected since", &time("connected_since"));
    add("last seen", &time("last_seen"));
    add("reconnects", &value_text(&client["reconnects"]));
    add("kind", text_field(client, "kind"));
    add("dialect", text_field(client, "dialect"));
    add("topic prefix", text_field(client, "topic_prefix"));
    let program = [
        text_field(client, "client_name"),
        text_field(client, "client_version"),
    ];
    add("program", program.join(" ").trim());
    for (title, name) in [
        ("facts", "canonical_facts"),
        ("catalog service facts", "catalog_service_facts"),
        ("dispatchers", "dispatchers"),
        ("tags", "tags"),
    ] {
        let Some(fields) = client[name].as_object().filter(|fields| !fields.is_empty()) else {
            continue;
        };
        rows.push(row(title, ""));
        for (field, value) in fields {
            rows.push(row(&format!("{INDENT}{field}"), &value_text(value)));
        }
    }
    Table::new(&COLUMNS, screen.colors, screen.width).render(&rows)
}

fn row(label: &str, value: &str) -> Vec<Cell> {
    vec![Cell::new(label), Cell::new(value)]
}

/// Returns a time with its distance from now. Returns a text that is not a time unchanged.
fn time_text(text: &str, now: Timestamp) -> String {
    match text.parse::<Timestamp>() {
        Ok(time) => format!("{} ({})", utc_text(time), relative_text(time, now)),
        Err(_) => text.to_owned(),
    }
}

/// Returns a value in one line. A list of texts has commas; other lists and objects are JSON.
fn value_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Object(fields) if fields.is_empty() => "-".to_owned(),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            items.join(", ")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::terminal::Colors;
    use serde_json::json;

    fn text(width: Option<usize>) -> String {
        let client = json!({
            "status": "disconnected", "client_id": "0a4b8d1e-5a26-4c4f-9d0c-3d2d0c6a9a01",
            "org_id": "10000", "account": "540155", "kind": "host", "dialect": "status",
            "topic_prefix": "redhat/insights", "client_name": "rhc", "client_version": "0.2.4",
            "connected_since": "2026-01-31T10:00:00Z", "last_seen": "2026-01-31T11:57:00Z",
            "disconnected_at": "2026-01-31T11:57:00Z", "reason": "will", "reconnects": 3,
            "canonical_facts": {
                "fqdn": "web-1.example.com",
                "ip_addresses": ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5"],
            },
            "dispatchers": {"package-manager": {}, "rhc-worker-playbook": {"ansible-runner-version": "1.2.3",
                "supported-formats": "playbook,role,collection"}},
            "tags": {},
        });
        let now = "2026-01-31T12:00:00Z".parse().unwrap();
        to_text(
            &client,
            now,
            Screen {
                colors: Colors::OFF,
                width,
            },
        )
    }

    #[test]
    fn the_text_fits_a_terminal_of_80_columns() {
        insta::assert_snapshot!(text(Some(80)), @r#"
        client                 0a4b8d1e-5a26-4c4f-9d0c-3d2d0c6a9a01
        status                 disconnected
        disconnected at        2026-01-31 11:57:00 UTC (3 min ago)
        reason                 will
        organization           10000
        account                540155
        connected since        2026-01-31 10:00:00 UTC (2 h ago)
        last seen              2026-01-31 11:57:00 UTC (3 min ago)
        reconnects             3
        kind                   host
        dialect                status
        topic prefix           redhat/insights
        program                rhc 0.2.4
        facts
          fqdn                 web-1.example.com
          ip_addresses         192.0.2.1, 192.0.2.2, 192.0.2.3, 192.0.2.4, 192.0.2.5
        dispatchers
          package-manager      -
          rhc-worker-playbook  {"ansible-runner-version":"1.2.3","supported-formats":"p…
        "#);
    }

    #[test]
    fn nothing_is_cut_on_a_terminal_of_140_columns() {
        insta::assert_snapshot!(text(Some(140)), @r#"
        client                 0a4b8d1e-5a26-4c4f-9d0c-3d2d0c6a9a01
        status                 disconnected
        disconnected at        2026-01-31 11:57:00 UTC (3 min ago)
        reason                 will
        organization           10000
        account                540155
        connected since        2026-01-31 10:00:00 UTC (2 h ago)
        last seen              2026-01-31 11:57:00 UTC (3 min ago)
        reconnects             3
        kind                   host
        dialect                status
        topic prefix           redhat/insights
        program                rhc 0.2.4
        facts
          fqdn                 web-1.example.com
          ip_addresses         192.0.2.1, 192.0.2.2, 192.0.2.3, 192.0.2.4, 192.0.2.5
        dispatchers
          package-manager      -
          rhc-worker-playbook  {"ansible-runner-version":"1.2.3","supported-formats":"playbook,role,collection"}
        "#);
        assert_eq!(text(None), text(Some(140)));
    }
}
