//! `why`: explains why a client is connected or not.

mod diagnosis;
mod text;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use jiff::Timestamp;

use super::rest_client::{RequestScope, RestClient, RestError, RestOptions};
use super::terminal::Colors;
use super::{OutputFormat, block_on, parse_client_id};
use crate::config::cli_environment;
use diagnosis::Diagnosis;

#[derive(Debug, Args)]
pub(super) struct WhyArgs {
    /// Id of the client
    #[arg(value_name = "CLIENT")]
    client_id: String,
    /// Output format
    #[arg(long = "output", short, value_enum, default_value_t = OutputFormat::Text)]
    output_format: OutputFormat,
    #[command(flatten)]
    rest: RestOptions,
}

/// The exit code is 0 if the client is connected.
pub(super) fn run(args: &WhyArgs) -> Result<ExitCode> {
    let client_id = parse_client_id(&args.client_id).map_err(RestError::usage)?;
    let environment = cli_environment();
    let client = RestClient::new(&args.rest, &environment)?;
    let document = block_on(async {
        let path = ["v2", "clients", client_id.as_str(), "diagnosis"];
        Ok(client
            .get_json(RequestScope::Management, &path, &[])
            .await?)
    })?;
    let diagnosis = Diagnosis::from_json(&document).context(
        "cannot read the diagnosis; use a cloud-connector program that is not older than the \
         connector",
    )?;
    let mut out = std::io::stdout().lock();
    match args.output_format {
        OutputFormat::Json => writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?,
        OutputFormat::Text => {
            let colors = Colors::of_standard_output(environment.forbids_color);
            out.write_all(text::render(&diagnosis, Timestamp::now(), colors).as_bytes())?;
        }
    }
    Ok(if diagnosis.is_connected() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
