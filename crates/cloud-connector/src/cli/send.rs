//! `send`: sends a message to a client.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::connections::{OrgArgs, OrgClient, client_id_arg};
use super::output::{OutputOption, print_document};
use super::rest_client::RestError;
use super::{block_on, escape_for_terminal};
use crate::config::cli_environment;

/// Larger than any message that a connector accepts by default.
const MAX_PAYLOAD_BYTES: usize = 16 * 1024 * 1024;

#[derive(Debug, Args)]
pub(super) struct SendArgs {
    /// Id of the client
    #[arg(value_name = "CLIENT")]
    client_id: String,
    /// Name of the application on the client that receives the message
    #[arg(value_name = "DIRECTIVE")]
    directive: String,
    /// Payload: JSON, @FILE for the JSON in a file, or - for the JSON on standard input
    #[arg(
        value_name = "JSON",
        default_value = "null",
        hide_default_value = true,
        allow_negative_numbers = true
    )]
    payload: String,
    /// Metadata of the message; can be repeated
    #[arg(long = "metadata", value_name = "KEY=VALUE", value_parser = key_value)]
    metadata: Vec<(String, String)>,
    #[command(flatten)]
    output: OutputOption,
    #[command(flatten)]
    org: OrgArgs,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = parts.ok_or("the form is KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

pub(super) fn run(args: &SendArgs) -> Result<ExitCode> {
    let client_id = client_id_arg(&args.client_id)?;
    if args.directive.trim().is_empty() {
        let problem = "the directive is empty; name the application that receives the message";
        return Err(RestError::Usage(problem.to_owned()).into());
    }
    let payload = read_payload(&args.payload)?;
    let body = message_body(&args.directive, &args.metadata, &payload);
    let client = OrgClient::new(&args.org, &cli_environment())?;
    let response = block_on(async {
        let response = client.post_to_client(&client_id, "message", &[], Some(body));
        Ok(response.await?)
    })?;
    print_document(args.output.format, &response, || {
        let id = response["id"].as_str().unwrap_or_default();
        format!("{}\n", escape_for_terminal(id))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the request body. The payload is not parsed into values, so that numbers stay as they are.
fn message_body(directive: &str, metadata: &[(String, String)], payload: &str) -> String {
    let metadata: BTreeMap<_, _> = metadata.iter().map(|(key, value)| (key, value)).collect();
    let metadata = if metadata.is_empty() {
        Value::Null
    } else {
        json!(metadata)
    };
    let directive = Value::from(directive);
    format!(r#"{{"directive":{directive},"metadata":{metadata},"payload":{payload}}}"#)
}

/// Returns the JSON text of the payload.
fn read_payload(argument: &str) -> Result<String, RestError> {
    let (text, origin) = if argument == "-" {
        (
            read_text(std::io::stdin().lock(), "standard input")?,
            "on standard input".to_owned(),
        )
    } else if let Some(path) = argument.strip_prefix('@') {
        let file = std::fs::File::open(path).map_err(|error| {
            RestError::Usage(format!(
                "cannot read the payload from {path}: {error}; check the path and its permissions"
            ))
        })?;
        (read_text(file, path)?, format!("in {path}"))
    } else {
        (argument.to_owned(), "in the argument".to_owned())
    };
    match serde_json::from_str::<IgnoredAny>(&text) {
        Ok(_) => Ok(text),
        Err(error) => Err(RestError::Usage(format!(
            "the payload {origin} is not JSON: {error}; correct it; a text needs quotation marks, \
             for example '\"text\"'"
        ))),
    }
}

fn read_text(source: impl Read, name: &str) -> Result<String, RestError> {
    let problem = |problem: String| {
        RestError::Usage(format!(
            "cannot read the payload from {name}: {problem}; give JSON in UTF-8"
        ))
    };
    let mut text = String::new();
    let max_bytes = u64::try_from(MAX_PAYLOAD_BYTES).unwrap_or(u64::MAX);
    let read = source.take(max_bytes + 1).read_to_string(&mut text);
    read.map_err(|error| problem(error.to_string()))?;
    if text.len() > MAX_PAYLOAD_BYTES {
        return Err(problem(format!(
            "it has more than {MAX_PAYLOAD_BYTES} bytes"
        )));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_sent_unchanged() {
        let payload = read_payload("{\"n\": 12345678901234567890123, \"a\": 1.10}").unwrap();
        let metadata = [("k\"".to_owned(), "v".to_owned())];
        assert_eq!(
            message_body("a\"b", &metadata, &payload),
            r#"{"directive":"a\"b","metadata":{"k\"":"v"},"payload":{"n": 12345678901234567890123, "a": 1.10}}"#
        );
        assert_eq!(
            message_body("a", &[], "null"),
            r#"{"directive":"a","metadata":null,"payload":null}"#
        );
    }

    #[test]
    fn the_payload_is_one_json_value() {
        for text in ["-1", "\"text\"", "[]", "null"] {
            assert_eq!(read_payload(text).unwrap(), text);
        }
        for text in [
            "text",
            "{\"a\":1}, \"directive\":\"x\"",
            "",
            "{",
            "@/nowhere",
        ] {
            let error = read_payload(text).unwrap_err();
            assert!(matches!(error, RestError::Usage(_)), "{error}");
        }
    }

    #[test]
    fn metadata_has_a_key_and_a_value() {
        assert_eq!(
            key_value("a=b=c").unwrap(),
            ("a".to_owned(), "b=c".to_owned())
        );
        assert!(key_value("a").is_err());
        assert!(key_value("=a").is_err());
    }
}
