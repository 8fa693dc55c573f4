//! `connections`: lists the connections of an organization, and acts on one client.

mod actions;
mod check;
mod history;
mod list;
mod show;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::Value;

use super::rest_client::{OrgOption, RequestScope, RestClient, RestError, RestOptions};
use super::terminal::{Color, utc_text};
use super::{escape_for_terminal, parse_client_id};
use crate::config::CliEnvironment;
use domain::ClientId;

/// Timeout of a response of a client, as the REST API accepts it.
const RESPONSE_TIMEOUT_SECONDS: std::ops::RangeInclusive<i64> = 1..=25;

#[derive(Debug, Subcommand)]
pub(super) enum ConnectionsCommand {
    /// List the connected clients, ordered by client id
    List(Box<list::ListArgs>),
    /// Show everything that is stored about a connected or disconnected client
    Show(show::ShowArgs),
    /// List when a client was connected and disconnected, newest first; a gap in the numbers is the number
    /// of transitions without an entry, because they were merged
    History(history::HistoryArgs),
    /// Ping a client and wait for its response; exits with 1 if the client does not respond
    Ping(actions::PingArgs),
    /// Check a connection; exits with 1 if the check finds a problem
    Check(check::CheckArgs),
    /// Send the command `reconnect` to a client: it disconnects and connects again
    Reconnect(actions::ReconnectArgs),
    /// Send the command `disconnect` to a client, which then does not connect again by itself
    Disconnect(actions::DisconnectArgs),
}

pub(super) fn run(command: &ConnectionsCommand) -> Result<ExitCode> {
    match command {
        ConnectionsCommand::List(args) => list::run(args),
        ConnectionsCommand::Show(args) => show::run(args),
        ConnectionsCommand::History(args) => history::run(args),
        ConnectionsCommand::Ping(args) => actions::ping(args),
        ConnectionsCommand::Check(args) => check::run(args),
        ConnectionsCommand::Reconnect(args) => actions::reconnect(args),
        ConnectionsCommand::Disconnect(args) => actions::disconnect(args),
    }
}

/// Options of all commands for one organization.
#[derive(Debug, Clone, Args)]
pub(super) struct OrgArgs {
    #[command(flatten)]
    rest: RestOptions,
    #[command(flatten)]
    org: OrgOption,
}

/// A connector and the organization of the command.
pub(super) struct OrgClient {
    rest: RestClient,
    org_id: String,
}

impl OrgClient {
    /// Finds the connector. Does not connect.
    pub(super) fn new(args: &OrgArgs, environment: &CliEnvironment) -> Result<Self, RestError> {
        let rest = RestClient::new(&args.rest, environment)?;
        let org_id = rest.org_id(&args.org, environment)?;
        Ok(Self { rest, org_id })
    }

    fn scope(&self) -> RequestScope<'_> {
        RequestScope::Tenant {
            org_id: &self.org_id,
        }
    }

    /// Requests a page of a list. Returns its elements and the cursor of the next page.
    async fn get_page(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<(Vec<Value>, Option<String>), RestError> {
        let mut page = self.rest.get_json(self.scope(), path, query).await?;
        let Value::Array(elements) = page["data"].take() else {
            return Err(RestError::Failed(format!(
                "the response of {} is not a list; check that --url is the URL of a connector",
                self.rest.url()
            )));
        };
        let cursor = page["meta"]["cursor"].as_str().map(str::to_owned);
        Ok((elements, cursor))
    }

    /// Requests everything that is stored about a client.
    async fn get_of_client(&self, client_id: &ClientId) -> Result<Value, RestError> {
        let path = ["v2", "connections", client_id.as_str()];
        let document = self.rest.get_json(self.scope(), &path, &[]).await;
        document.map_err(|error| self.explain_not_found(error, client_id, "has no client"))
    }

    /// Sends a request that acts on a connected client.
    pub(super) async fn post_to_client(
        &self,
        client_id: &ClientId,
        action: &str,
        query: &[(&str, &str)],
        body: Option<String>,
    ) -> Result<Value, RestError> {
        let path = ["v2", "connections", client_id.as_str(), action];
        let response = self.rest.post_json(self.scope(), &path, query, body).await;
        response
            .map_err(|error| self.explain_not_found(error, client_id, "has no connected client"))
    }

    /// Adds the client and the fix to an error that the connector does not have the client.
    fn explain_not_found(
        &self,
        error: RestError,
        client_id: &ClientId,
        problem: &str,
    ) -> RestError {
        let RestError::NotFound(_) = error else {
            return error;
        };
        let org_id = escape_for_terminal(&self.org_id);
        let client_id = shown_id(client_id);
        RestError::NotFound(format!(
            "the organization {org_id} {problem} {client_id}; check the id and --org; \
             `cloud-connector why {client_id}` explains the state of a client of any organization"
        ))
    }
}

/// Parses a client id. An invalid id is a usage error.
pub(super) fn client_id_arg(text: &str) -> Result<ClientId, RestError> {
    parse_client_id(text).map_err(RestError::usage)
}

/// Returns a client id without characters that control a terminal.
fn shown_id(client_id: &ClientId) -> String {
    escape_for_terminal(client_id.as_str())
}

/// Returns a text field of a document, or an empty text.
fn text_field<'a>(document: &'a Value, name: &str) -> &'a str {
    document[name].as_str().unwrap_or_default()
}

/// Returns a time field of a document with seconds, in UTC and without the zone.
fn short_time_field(document: &Value, name: &str) -> String {
    let text = text_field(document, name);
    match text.parse::<Timestamp>() {
        Ok(time) => utc_text(time).trim_end_matches(" UTC").to_owned(),
        Err(_) => text.to_owned(),
    }
}

/// Returns the names of the fields of an object, with commas.
fn field_names(value: &Value) -> String {
    let fields = value.as_object();
    let names: Vec<&str> = fields
        .into_iter()
        .flatten()
        .map(|(name, _)| name.as_str())
        .collect();
    names.join(",")
}

fn status_color(status: &str) -> Color {
    match status {
        "connected" | "online" => Color::Green,
        _ => Color::Red,
    }
}
