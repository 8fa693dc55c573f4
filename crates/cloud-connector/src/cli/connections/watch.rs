//! `--watch`: prints a document again whenever it changes.

use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::cli::output::{DocumentFormat, Screen, print_text};
use crate::cli::rest_client::RestError;

const CLEAR_SCREEN: &str = "\u{1b}[H\u{1b}[2J";

#[derive(Debug, Clone, Args)]
pub(super) struct WatchOptions {
    /// Repeat the request until the command is interrupted, and print each change
    #[arg(long = "watch")]
    pub is_watching: bool,
    /// Seconds between two requests with --watch
    #[arg(long = "interval", value_name = "SECONDS", default_value_t = 2, requires = "is_watching",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval_seconds: u64,
}

/// Requests a document again and again, and prints it. A terminal shows only the latest document. In a
/// pipe, an unchanged document is not printed again. Before the first document, an error ends the
/// command.
pub(super) async fn watch<T: PartialEq>(
    options: &WatchOptions,
    format: DocumentFormat,
    screen: Screen,
    mut request: impl AsyncFnMut() -> Result<T, RestError>,
    mut print: impl FnMut(&T) -> Result<()>,
) -> Result<()> {
    let is_terminal = screen.width.is_some();
    let mut last_document = None;
    let mut last_error = String::new();
    loop {
        match request().await {
            Ok(document) => {
                last_error.clear();
                if is_terminal {
                    print_text(CLEAR_SCREEN)?;
                }
                if is_terminal || last_document.as_ref() != Some(&document) {
                    let is_next_document = last_document.is_some() && !is_terminal;
                    if is_next_document && format != DocumentFormat::Json {
                        let is_yaml = format == DocumentFormat::Yaml;
                        print_text(if is_yaml { "---\n" } else { "\n" })?;
                    }
                    print(&document)?;
                }
                last_document = Some(document);
            }
            Err(error) if last_document.is_some() && error.is_temporary() => {
                let error = error.to_string();
                if error != last_error {
                    service::logs::print_error(&format!("cloud-connector: {error}; retrying"));
                    last_error = error;
                }
            }
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(Duration::from_secs(options.interval_seconds)).await;
    }
}
