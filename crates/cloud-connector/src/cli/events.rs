//! `events`: prints the events of an organization.

mod line;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{ArgGroup, Args};

use super::rest_client::sse::Item;
use super::rest_client::{OrgOption, RequestScope, RestClient, RestError, RestOptions};
use super::terminal::Colors;
use super::{OutputFormat, block_on, parse_client_id};
use crate::config::{CliEnvironment, cli_environment};
use line::EventLine;

const PATH: [&str; 2] = ["v2", "events"];
/// Type of the event that the connector sends if it cannot continue after the requested position.
const RESET_TYPE: &str = "reset";
const MIN_RECONNECT_DELAY: Duration = Duration::from_secs(1);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
#[command(group(
    ArgGroup::new("range").args(["is_following", "since"]).required(true).multiple(true)
))]
pub(super) struct EventsArgs {
    /// Print new events until the command is interrupted; reconnects if the connection is lost
    #[arg(long = "follow")]
    is_following: bool,
    /// Begin after this position; without --follow, print the events up to the current position
    #[arg(long, value_name = "POSITION")]
    since: Option<u64>,
    /// Print only events of this type, for example connection.offline; can be repeated
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Print only events of this client
    #[arg(long = "client", value_name = "CLIENT")]
    client_id: Option<String>,
    /// Print only events of clients with this dispatcher
    #[arg(long, value_name = "DISPATCHER")]
    dispatcher: Option<String>,
    /// Output format; json prints one object per line
    #[arg(long = "output", short, value_enum, default_value_t = OutputFormat::Text)]
    output_format: OutputFormat,
    #[command(flatten)]
    rest: RestOptions,
    #[command(flatten)]
    org: OrgOption,
}

pub(super) fn run(args: &EventsArgs) -> Result<ExitCode> {
    if let Some(client_id) = &args.client_id {
        parse_client_id(client_id).map_err(RestError::usage)?;
    }
    let environment = cli_environment();
    let printer = Printer {
        output_format: args.output_format,
        colors: Colors::of_standard_output(environment.forbids_color),
    };
    block_on(async {
        match args.since {
            Some(since) if !args.is_following => {
                print_until_now(args, since, &environment, &printer).await
            }
            _ => follow(args, &environment, &printer).await,
        }
    })
}

impl EventsArgs {
    fn query(&self) -> Vec<(&str, &str)> {
        let types = self.types.iter().map(|kind| ("type", kind.as_str()));
        let client_id = self.client_id.iter().map(|id| ("client_id", id.as_str()));
        let dispatcher = self.dispatcher.iter();
        let dispatcher = dispatcher.map(|name| ("dispatcher", name.as_str()));
        types.chain(client_id).chain(dispatcher).collect()
    }
}

struct Printer {
    output_format: OutputFormat,
    colors: Colors,
}

impl Printer {
    fn print(&self, position: Option<&str>, event_type: &str, data: &str) -> Result<()> {
        let event = EventLine::new(position, event_type, data);
        let text = match self.output_format {
            OutputFormat::Json => event.to_json(),
            OutputFormat::Text => event.to_text(self.colors),
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{text}")?;
        // The reader of a pipe must receive each event when it occurs.
        out.flush()?;
        Ok(())
    }
}

/// Prints a note on standard error, so that standard output contains only events.
fn print_note(note: &str) {
    service::logs::print_error(&format!("cloud-connector: {note}"));
}

/// Prints the events after `since`, up to the current position.
async fn print_until_now(
    args: &EventsArgs,
    since: u64,
    environment: &CliEnvironment,
    printer: &Printer,
) -> Result<ExitCode> {
    let client = RestClient::new(&args.rest, environment)?;
    let org_id = client.org_id(&args.org, environment)?;
    let scope = RequestScope::Tenant { org_id: &org_id };
    let current_position = read_current_position(&client, scope).await?;
    if since > current_position {
        return Err(RestError::Failed(format!(
            "position {since} is after the current position {current_position}; begin with \
             --since {current_position}"
        ))
        .into());
    }
    let since_text = since.to_string();
    let mut position = since;
    let query = args.query();
    let mut stream = client
        .open_event_stream(scope, &PATH, &query, Some(&since_text))
        .await?;
    while position < current_position {
        let Some(items) = stream.next_items().await? else {
            return Err(RestError::Temporary(format!(
                "the connector closed the stream of events; continue with --since {position}"
            ))
            .into());
        };
        for item in items {
            match item {
                Item::Event {
                    event_type, data, ..
                } if event_type == RESET_TYPE => {
                    print_note(&reset_note(&data));
                    return Ok(ExitCode::FAILURE);
                }
                Item::Event {
                    id,
                    event_type,
                    data,
                } => {
                    let event_position = parse_position(id.as_deref())?;
                    if event_position <= current_position {
                        printer.print(id.as_deref(), &event_type, &data)?;
                    }
                    position = event_position;
                }
                Item::Position(id) => position = parse_position(Some(&id))?,
            }
        }
    }
    print_note(&format!(
        "these are all events up to position {current_position}; --since {current_position} \
         continues"
    ));
    Ok(ExitCode::SUCCESS)
}

/// Returns the current position: a stream without a start position begins with it.
async fn read_current_position(
    client: &RestClient,
    scope: RequestScope<'_>,
) -> Result<u64, RestError> {
    let mut stream = client.open_event_stream(scope, &PATH, &[], None).await?;
    while let Some(items) = stream.next_items().await? {
        match items.first() {
            Some(Item::Event { id, .. }) => return parse_position(id.as_deref()),
            Some(Item::Position(id)) => return parse_position(Some(id)),
            None => {}
        }
    }
    Err(RestError::Temporary(
        "the connector closed the stream of events before it sent the current position; try again"
            .to_owned(),
    ))
}

fn parse_position(id: Option<&str>) -> Result<u64, RestError> {
    let position = id.and_then(|id| id.parse().ok());
    position.ok_or_else(|| {
        RestError::Failed(format!(
            "the stream of events contains the position {id:?}, which is not a number; check that \
             --url is the URL of a connector"
        ))
    })
}

/// Prints new events. Reconnects and resumes after each interruption.
async fn follow(
    args: &EventsArgs,
    environment: &CliEnvironment,
    printer: &Printer,
) -> Result<ExitCode> {
    let mut state = FollowState {
        last_id: args.since.map(|since| since.to_string()),
        was_connected: false,
        reconnect_delay: MIN_RECONNECT_DELAY,
    };
    loop {
        let cause = match follow_one_stream(args, environment, printer, &mut state).await {
            Ok(()) => "the connector closed the stream of events".to_owned(),
            Err(error) if state.was_connected && is_temporary(&error) => error.to_string(),
            Err(error) => return Err(error),
        };
        let delay = state.reconnect_delay;
        print_note(&format!("{cause}; reconnecting in {} s", delay.as_secs()));
        tokio::time::sleep(delay).await;
        state.reconnect_delay = next_delay(delay);
    }
}

fn next_delay(delay: Duration) -> Duration {
    (delay * 2).min(MAX_RECONNECT_DELAY)
}

fn is_temporary(error: &anyhow::Error) -> bool {
    let rest_error = error.downcast_ref::<RestError>();
    rest_error.is_some_and(RestError::is_temporary)
}

/// What `--follow` knows after an interruption.
struct FollowState {
    /// The position after which the next stream begins. `None` means the current position.
    last_id: Option<String>,
    /// Whether a stream has been open. If not, an error ends the command.
    was_connected: bool,
    reconnect_delay: Duration,
}

/// Prints the events of one stream until the connector closes it.
async fn follow_one_stream(
    args: &EventsArgs,
    environment: &CliEnvironment,
    printer: &Printer,
    state: &mut FollowState,
) -> Result<()> {
    // Finds the connector again, because a restarted connector can have another address.
    let client = RestClient::new(&args.rest, environment)?;
    let org_id = client.org_id(&args.org, environment)?;
    let scope = RequestScope::Tenant { org_id: &org_id };
    let query = args.query();
    let mut stream = client
        .open_event_stream(scope, &PATH, &query, state.last_id.as_deref())
        .await?;
    state.was_connected = true;
    while let Some(items) = stream.next_items().await? {
        for item in items {
            let id = match item {
                Item::Event {
                    id,
                    event_type,
                    data,
                } if event_type == RESET_TYPE => {
                    print_note(&reset_note(&data));
                    id
                }
                Item::Event {
                    id,
                    event_type,
                    data,
                } => {
                    printer.print(id.as_deref(), &event_type, &data)?;
                    id
                }
                Item::Position(id) => Some(id),
            };
            state.last_id = id.or(state.last_id.take());
            state.reconnect_delay = MIN_RECONNECT_DELAY;
        }
    }
    Ok(())
}

/// Returns the note about a `reset` event, with the reason in its data.
fn reset_note(data: &str) -> String {
    let data = serde_json::from_str::<serde_json::Value>(data).unwrap_or_default();
    let reason = data["reason"].as_str();
    let reason = reason.map(|reason| format!(" ({})", super::escape_for_terminal(reason)));
    format!(
        "reset: events are missing{}; list the connections again",
        reason.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reconnect_delay_grows_up_to_its_maximum() {
        let mut delay = MIN_RECONNECT_DELAY;
        let mut delays = Vec::new();
        for _ in 0..7 {
            delays.push(delay.as_secs());
            delay = next_delay(delay);
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn the_note_about_a_reset_contains_its_reason() {
        let note = reset_note(r#"{"reason":"too_slow"}"#);
        assert!(note.contains("events are missing (too_slow);"), "{note}");
        assert!(reset_note("").contains("events are missing;"));
    }

    #[test]
    fn a_position_that_is_not_a_number_is_an_error() {
        assert_eq!(parse_position(Some("17")).unwrap(), 17);
        assert!(parse_position(Some("x")).is_err());
        assert!(parse_position(None).is_err());
    }
}
