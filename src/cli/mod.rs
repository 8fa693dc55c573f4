//! The command line: one file a command.

mod certs;
mod config;
mod dead_letters;
mod doctor;
mod migrate;
mod openapi;
mod report;
mod run;
mod simulate;
mod tenantless;
mod update;
mod version;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::{LoadedConfig, Overrides};
use crate::domain::ClientId;
use crate::jobs::LookupJob;

/// Records which machines are connected over MQTT and to which organisation each belongs, and
/// sends messages to them over REST.
#[derive(Debug, Parser)]
#[command(name = "cloud-connector", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the connector: by default everything in this one process
    Run(run::RunArgs),
    /// Bring the database up to date and end
    Migrate(migrate::MigrateArgs),
    /// Print the configuration in effect and where each value came from
    Config(config::ConfigArgs),
    /// Check everything that the connector needs, and say what to do about what is wrong
    Doctor(doctor::DoctorArgs),
    /// Tell inventory again of hosts that it would soon take for stale: one run, for cron
    UpdateStale(update::UpdateArgs),
    /// Look up clients that belong to nobody yet: one run, for cron
    UpdateTenantless(update::UpdateArgs),
    /// Look at clients that belong to nobody
    #[command(subcommand)]
    TenantlessClient(tenantless::TenantlessCommand),
    /// Count connections
    #[command(subcommand)]
    Report(report::ReportCommand),
    /// Look at messages that could never be processed
    #[command(subcommand)]
    DeadLetters(dead_letters::DeadLettersCommand),
    /// Be one client or thousands: well-behaved, or as bad as you like
    Simulate(simulate::SimulateArgs),
    /// A private authority and certificates, for a site that has none
    #[command(subcommand)]
    Certs(certs::CertsCommand),
    /// Print the OpenAPI document of the REST interface
    Openapi(openapi::OpenapiArgs),
    /// Print the version
    Version,
}

/// How a command prints what it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// A sender's text must not be able to drive the operator's terminal, nor to look like more lines or
/// other text than it is.
fn printable(text: &str) -> String {
    let is_odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars()
        .flat_map(|c| {
            if is_odd(c) {
                c.escape_unicode().collect()
            } else {
                vec![c]
            }
        })
        .collect()
}

fn client_ids(names: &[String]) -> Result<Vec<ClientId>> {
    let read = |name: &String| {
        ClientId::new(name).map_err(|why| anyhow::anyhow!("{name:?} is no client id: {why}"))
    };
    names.iter().map(read).collect()
}

/// Where the configuration comes from; the same for every command that needs one.
#[derive(Debug, Clone, Args)]
struct ConfigSource {
    /// Configuration file (TOML); its keys are those of `cloud-connector config --defaults`
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data folder [key: data.dir]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Address and port of the REST interface [key: http.listen]
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// Address and port of the embedded broker [key: broker.listen]
    #[arg(long, value_name = "ADDR")]
    mqtt: Option<String>,
}

impl ConfigSource {
    fn load(&self) -> Result<LoadedConfig> {
        let mut flags = Vec::new();
        if let Some(dir) = &self.data_dir {
            flags.push(("--data-dir", "data.dir", dir.display().to_string()));
        }
        if let Some(address) = &self.http {
            flags.push(("--http", "http.listen", address.clone()));
        }
        if let Some(address) = &self.mqtt {
            flags.push(("--mqtt", "broker.listen", address.clone()));
        }
        let file = self.config.clone();
        Ok(crate::config::load(&Overrides { file, flags })?)
    }
}

/// Runs the command that the arguments name.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::UpdateStale(args) => update::run(LookupJob::InventoryRefresh, &args),
        Command::UpdateTenantless(args) => update::run(LookupJob::TenantlessClient, &args),
        Command::TenantlessClient(command) => tenantless::run(&command),
        Command::Report(command) => report::run(&command),
        Command::DeadLetters(command) => dead_letters::run(&command),
        Command::Simulate(args) => simulate::run(&args),
        Command::Certs(command) => certs::run(&command),
        Command::Openapi(args) => openapi::run(&args),
        Command::Version => version::run(),
    };
    match done {
        Ok(code) => code,
        // Whoever read the output has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cloud-connector: {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// The whole chain of causes in one line, the cure of the outermost last.
fn one_line(error: &anyhow::Error) -> String {
    let mut causes = error.chain().map(ToString::to_string);
    let first = causes.next().unwrap_or_default();
    let rest: Vec<String> = causes
        .filter(|cause| !first.contains(cause.as_str()))
        .collect();
    if rest.is_empty() {
        return first;
    }
    match first.split_once("; ") {
        Some((problem, cure)) => format!("{problem}: {}; {cure}", rest.join(": ")),
        None => format!("{first}: {}", rest.join(": ")),
    }
}

/// A runtime for a command that waits for the network.
fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(future)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_senders_text_cannot_drive_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\u{9b}c"), "a\\u{1b}[2Jb\\u{9b}c");
        assert_eq!(printable("a\n\u{202e}b"), "a\\u{a}\\u{202e}b");
        assert_eq!(printable("é😀 x"), "é😀 x");
    }

    #[test]
    fn an_error_is_one_line_with_its_cause_before_the_cure() {
        let error = Err::<(), _>(std::io::Error::other("no space"))
            .context("data.dir: cannot make x; choose another")
            .unwrap_err();
        assert_eq!(
            one_line(&error),
            "data.dir: cannot make x: no space; choose another"
        );
    }
}
