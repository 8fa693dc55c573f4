//! `connections check`: checks a connection at one of three levels.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use super::actions::TimeoutOption;
use super::{OrgArgs, OrgClient, client_id_arg, text_field};
use crate::cli::output::{OutputOption, Screen, print_document};
use crate::cli::rest_client::RestError;
use crate::cli::terminal::{Color, Colors};
use crate::cli::{block_on, escape_for_terminal};
use crate::config::cli_environment;

#[derive(Debug, Args)]
pub(in crate::cli) struct CheckArgs {
    /// Id of the client
    #[arg(value_name = "CLIENT")]
    client_id: String,
    /// 1: look the client up in the database; 2: ping it, too; 3: send a message to an application on the
    /// client that responds to it
    #[arg(long, value_name = "LEVEL", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=3))]
    level: u8,
    /// Directive of the message of level 3
    #[arg(long, value_name = "DIRECTIVE")]
    directive: Option<String>,
    #[command(flatten)]
    timeout: TimeoutOption,
    #[command(flatten)]
    output: OutputOption,
    #[command(flatten)]
    org: OrgArgs,
}

impl CheckArgs {
    /// Checks that the level uses each given option.
    fn validate(&self) -> Result<(), RestError> {
        let problem = match (self.level, &self.directive) {
            (1, _) if self.timeout.seconds.is_some() => {
                "--timeout is the time that a client has for its response; use it with --level 2 or 3"
            }
            (3, None) => "--level 3 sends a message; name its directive with --directive",
            (1 | 2, Some(_)) => "--directive is the directive of a message; use it with --level 3",
            (3, Some(directive)) if directive.trim().is_empty() => {
                "the directive is empty; name a directive to which an application on the client responds"
            }
            _ => return Ok(()),
        };
        Err(RestError::Usage(problem.to_owned()))
    }
}

pub(super) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let client_id = client_id_arg(&args.client_id)?;
    args.validate()?;
    let environment = cli_environment();
    let screen = Screen::of_standard_output(&environment);
    let client = OrgClient::new(&args.org, &environment)?;
    let level = args.level.to_string();
    let mut query = vec![("level", level.as_str())];
    query.extend(
        args.directive
            .as_deref()
            .map(|directive| ("directive", directive)),
    );
    let timeout = args.timeout.seconds.map(|seconds| seconds.to_string());
    query.extend(timeout.as_deref().map(|seconds| ("timeout", seconds)));
    let result = block_on(async {
        Ok(client
            .post_to_client(&client_id, "check", &query, None)
            .await?)
    })?;
    print_document(args.output.format, &result, || {
        to_text(client_id.as_str(), &result, screen.colors)
    })?;
    Ok(if has_problem(&result) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn has_problem(result: &Value) -> bool {
    text_field(result, "status") != "connected"
        || result["answered"] == false
        || result["client_error"].is_string()
}

fn to_text(client_id: &str, result: &Value, colors: Colors) -> String {
    let client_id = escape_for_terminal(client_id);
    let status = escape_for_terminal(text_field(result, "status"));
    let response = match (
        result["answered"].as_bool(),
        result["client_error"].as_str(),
    ) {
        (_, Some(error)) => format!(
            ", and responded with an error: {}",
            escape_for_terminal(error)
        ),
        (Some(true), None) => format!(", and responded in {} ms", result["round_trip_ms"]),
        (Some(false), None) => ", but did not respond in time".to_owned(),
        (None, None) => String::new(),
    };
    let (outcome, color) = if has_problem(result) {
        ("FAIL", Color::Red)
    } else {
        ("ok", Color::Green)
    };
    let padding = " ".repeat(4 - outcome.len());
    let outcome = colors.paint(color, outcome);
    format!("{outcome}{padding}  {client_id} is {status}{response}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_text_begins_with_the_result() {
        for (result, expected) in [
            (json!({"status": "connected"}), "ok    a is connected\n"),
            (
                json!({"status": "disconnected"}),
                "FAIL  a is disconnected\n",
            ),
            (
                json!({"status": "connected", "answered": true, "round_trip_ms": 1.5}),
                "ok    a is connected, and responded in 1.5 ms\n",
            ),
            (
                json!({"status": "connected", "answered": false}),
                "FAIL  a is connected, but did not respond in time\n",
            ),
            (
                json!({"status": "connected", "answered": true, "client_error": "no\u{1b}"}),
                "FAIL  a is connected, and responded with an error: no\\u{1b}\n",
            ),
        ] {
            assert_eq!(to_text("a", &result, Colors::OFF), expected);
        }
    }
}
