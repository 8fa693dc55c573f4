//! The output of commands that print documents of the REST API: a table for people, JSON or YAML.

mod yaml;

use std::io::{IsTerminal as _, Write as _};

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::Value;

use super::is_unsafe_for_terminal;
use super::terminal::Colors;
use crate::config::CliEnvironment;

/// Width of a terminal that does not report its width.
const DEFAULT_TERMINAL_WIDTH: usize = 80;

/// How a command prints its result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum DocumentFormat {
    /// A table or text for people
    #[default]
    Table,
    /// JSON; the documents of the REST API, if the command uses it
    Json,
    /// The same documents as YAML
    Yaml,
}

#[derive(Debug, Clone, Args)]
pub(super) struct OutputOption {
    /// Output format
    #[arg(
        long = "output",
        short = 'o',
        value_name = "FORMAT",
        value_enum,
        default_value_t
    )]
    pub format: DocumentFormat,
}

/// What standard output can show.
#[derive(Debug, Clone, Copy)]
pub(super) struct Screen {
    pub colors: Colors,
    /// Width of the terminal. `None` if standard output is not a terminal.
    pub width: Option<usize>,
}

impl Screen {
    pub(super) fn of_standard_output(environment: &CliEnvironment) -> Self {
        let stdout = std::io::stdout();
        let width = stdout.is_terminal().then(|| {
            let width = rustix::termios::tcgetwinsize(&stdout).map_or(0, |size| size.ws_col);
            match usize::from(width) {
                0 => DEFAULT_TERMINAL_WIDTH,
                width => width,
            }
        });
        Self {
            colors: Colors::of_standard_output(environment.forbids_color),
            width,
        }
    }
}

/// Prints a text on standard output, and sends it to the reader of a pipe at once.
pub(super) fn print_text(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Prints one document. `to_text` returns the text for people.
pub(super) fn print_document(
    format: DocumentFormat,
    document: &Value,
    to_text: impl FnOnce() -> String,
) -> Result<()> {
    print_text(&match format {
        DocumentFormat::Table => to_text(),
        DocumentFormat::Json => json_text(document) + "\n",
        DocumentFormat::Yaml => yaml::to_yaml(document),
    })
}

/// Returns indented JSON. Characters that control a terminal are escaped.
fn json_text(document: &Value) -> String {
    escape_json(&format!("{document:#}"))
}

/// Escapes characters that control a terminal. They occur only in strings of a JSON text.
fn escape_json(json: &str) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        // A YAML parser rejects the last three characters.
        let is_escaped = is_unsafe_for_terminal(character) && character != '\n'
            || matches!(character, '\u{feff}' | '\u{fffe}' | '\u{ffff}');
        if is_escaped {
            // All of these characters have a code of at most four hexadecimal digits.
            let _ = write!(text, "\\u{:04x}", u32::from(character));
        } else {
            text.push(character);
        }
    }
    text
}

/// Prints a list of documents whose parts arrive one after the other, so that a long list needs no
/// memory.
pub(super) struct ListPrinter {
    format: DocumentFormat,
    count: usize,
}

impl ListPrinter {
    pub(super) fn new(format: DocumentFormat) -> Self {
        Self { format, count: 0 }
    }

    /// Prints the next documents of the list. `to_text` returns the text for people.
    pub(super) fn print(
        &mut self,
        documents: &[Value],
        to_text: impl FnOnce(&[Value]) -> String,
    ) -> Result<()> {
        let mut text = String::new();
        match self.format {
            DocumentFormat::Table => text = to_text(documents),
            DocumentFormat::Json => {
                for (i, document) in documents.iter().enumerate() {
                    let is_first = self.count + i == 0;
                    text.push_str(if is_first { "[\n  " } else { ",\n  " });
                    text.push_str(&json_text(document).replace('\n', "\n  "));
                }
            }
            DocumentFormat::Yaml => {
                for document in documents {
                    text.push_str(&yaml::to_yaml(&Value::Array(vec![document.clone()])));
                }
            }
        }
        self.count += documents.len();
        print_text(&text)
    }

    /// Prints the end of the list. `empty_text` is the text for people if the list is empty.
    pub(super) fn finish(self, empty_text: &str) -> Result<()> {
        match (self.format, self.count) {
            (DocumentFormat::Table, 0) => print_text(&format!("{empty_text}\n")),
            (DocumentFormat::Json | DocumentFormat::Yaml, 0) => print_text("[]\n"),
            (DocumentFormat::Json, _) => print_text("\n]\n"),
            (DocumentFormat::Table | DocumentFormat::Yaml, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_has_no_characters_that_control_a_terminal_and_the_same_value() {
        let document = json!({"a": "x\u{1b}\u{9b}2J\u{202e}\u{7f}", "b": [1, "é"]});
        let text = json_text(&document);
        assert!(
            text.chars()
                .all(|c| c == '\n' || !is_unsafe_for_terminal(c)),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), document);
    }
}
