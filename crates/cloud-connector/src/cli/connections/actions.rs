//! `connections ping`, `reconnect` and `disconnect`: act on one client.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::{OrgArgs, OrgClient, RESPONSE_TIMEOUT_SECONDS, client_id_arg, shown_id, text_field};
use crate::cli::output::{OutputOption, print_document};
use crate::cli::rest_client::RestError;
use crate::cli::{block_on, escape_for_terminal};
use crate::config::cli_environment;
use domain::ClientId;

#[derive(Debug, Args)]
pub(super) struct TimeoutOption {
    /// Seconds to wait for the client's response, 1 to 25 [default: 5]
    #[arg(long = "timeout", value_name = "SECONDS",
          value_parser = clap::value_parser!(i64).range(RESPONSE_TIMEOUT_SECONDS))]
    pub seconds: Option<i64>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct PingArgs {
    /// Id of the client
    #[arg(value_name = "CLIENT")]
    client_id: String,
    #[command(flatten)]
    timeout: TimeoutOption,
    #[command(flatten)]
    output: OutputOption,
    #[command(flatten)]
    org: OrgArgs,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ReconnectArgs {
    /// Id of the client
    #[arg(value_name = "CLIENT")]
    client_id: String,
    /// Seconds that the client waits before it connects again
    #[arg(long = "delay", value_name = "SECONDS", default_value_t = 0,
          value_parser = clap::value_parser!(i64).range(0..))]
    delay_seconds: i64,
    /// Text for the log of the client
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    message: String,
    #[command(flatten)]
    output: OutputOption,
    #[command(flatten)]
    org: OrgArgs,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct DisconnectArgs {
    /// Id of the client
    #[arg(value_name = "CLIENT")]
    client_id: String,
    /// Text for the log of the client
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    message: String,
    /// Do not prompt for confirmation
    #[arg(long = "yes", short = 'y')]
    is_confirmed: bool,
    #[command(flatten)]
    output: OutputOption,
    #[command(flatten)]
    org: OrgArgs,
}

pub(super) fn ping(args: &PingArgs) -> Result<ExitCode> {
    let timeout = args.timeout.seconds.map(|seconds| seconds.to_string());
    let query: Vec<_> = timeout
        .as_deref()
        .map(|seconds| ("timeout", seconds))
        .into_iter()
        .collect();
    let client_id = client_id_arg(&args.client_id)?;
    let response = post(&args.org, &client_id, "ping", &query, None)?;
    print_document(args.output.format, &response, || {
        let client_id = shown_id(&client_id);
        format!(
            "{client_id} responded in {} ms\n",
            response["round_trip_ms"]
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn reconnect(args: &ReconnectArgs) -> Result<ExitCode> {
    let client_id = client_id_arg(&args.client_id)?;
    let body = json!({"delay": args.delay_seconds, "message": args.message});
    let response = post(&args.org, &client_id, "reconnect", &[], Some(&body))?;
    print_document(args.output.format, &response, || {
        let client_id = shown_id(&client_id);
        let message_id = message_id_text(&response);
        format!("sent the command `reconnect` to {client_id} {message_id}\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn disconnect(args: &DisconnectArgs) -> Result<ExitCode> {
    let client_id = client_id_arg(&args.client_id)?;
    if !args.is_confirmed {
        confirm_disconnect(&client_id)?;
    }
    let body = json!({"message": args.message});
    let response = post(&args.org, &client_id, "disconnect", &[], Some(&body))?;
    print_document(args.output.format, &response, || {
        let client_id = shown_id(&client_id);
        let message_id = message_id_text(&response);
        format!("sent the command `disconnect` to {client_id} {message_id}\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

fn post(
    org: &OrgArgs,
    client_id: &ClientId,
    action: &str,
    query: &[(&str, &str)],
    body: Option<&Value>,
) -> Result<Value> {
    let environment = cli_environment();
    let client = OrgClient::new(org, &environment)?;
    let body = body.map(Value::to_string);
    block_on(async {
        Ok(client
            .post_to_client(client_id, action, query, body)
            .await?)
    })
}

fn message_id_text(response: &Value) -> String {
    format!(
        "(message {})",
        escape_for_terminal(text_field(response, "id"))
    )
}

/// Prompts for the client id.
fn confirm_disconnect(client_id: &ClientId) -> Result<()> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(RestError::Usage(
            "the confirmation needs a terminal; give --yes to disconnect the client without \
             confirmation"
                .to_owned(),
        )
        .into());
    }
    let mut prompt = std::io::stderr().lock();
    write!(
        prompt,
        "{} disconnects and does not connect again by itself.\n\
         Type the client id to confirm: ",
        shown_id(client_id)
    )?;
    prompt.flush()?;
    let mut input = String::new();
    stdin.read_line(&mut input)?;
    if input.trim() == client_id.as_str() {
        return Ok(());
    }
    Err(RestError::Failed(
        "this is not the client id; nothing was sent; repeat the command and type the client id"
            .to_owned(),
    )
    .into())
}
