//! The command-line interface. Each command has its own file.

mod certs;
mod completions;
mod config;
mod connections;
mod dead_letters;
mod doctor;
mod events;
mod login;
mod man;
mod migrate;
mod openapi;
mod output;
mod report;
mod rest_client;
mod run;
mod send;
mod table;
mod tenantless;
mod terminal;
mod update;
mod update_presence;
mod version;
mod why;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::{Args, Parser, Subcommand};

use crate::config::{LoadedConfig, Overrides};
use domain::ClientId;
use jobs::LookupJob;
use rest_client::RestError;
use simulator::{OutputFormat, SimulateArgs};

/// Records which clients are connected over MQTT and the organization of each client; REST callers
/// can list clients and send messages to them
#[derive(Debug, Parser)]
#[command(name = "cloud-connector", version = version::VERSION, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the connector: all roles in one process, or only the roles given with --role
    Run(run::RunArgs),
    /// Apply pending database migrations and exit
    Migrate(migrate::MigrateArgs),
    /// Print the effective configuration and the origin of each value
    Config(config::ConfigArgs),
    /// Check configuration and dependencies, and print how to fix problems
    Doctor(doctor::DoctorArgs),
    /// Report hosts to inventory again before inventory marks them stale (one run, for cron)
    UpdateInventory(update::UpdateArgs),
    /// Retry the tenant lookup for clients without a tenant (one run, for cron)
    UpdateTenantless(update::UpdateArgs),
    /// Ping silent clients, and end the connections of those that do not answer (one run, for cron)
    UpdatePresence(update_presence::UpdatePresenceArgs),
    /// List, retry or delete clients without a tenant
    #[command(subcommand)]
    Tenantless(tenantless::TenantlessCommand),
    /// Print connection statistics
    #[command(subcommand)]
    Report(report::ReportCommand),
    /// Count, list, replay or delete dead letters: messages that could not be processed
    #[command(subcommand)]
    DeadLetters(dead_letters::DeadLettersCommand),
    /// List, show, check, reconnect or disconnect the clients of an organization; uses the REST API of a
    /// running connector
    #[command(subcommand)]
    Connections(connections::ConnectionsCommand),
    /// Send a message to a client; uses the REST API of a running connector
    Send(send::SendArgs),
    /// Explain why a client is connected or not; uses the REST API of a running connector
    Why(why::WhyArgs),
    /// Print the events of an organization: connections and messages; uses the REST API of a running connector
    Events(events::EventsArgs),
    /// Save the URL and the API key of a connector as a profile, for the commands that use the REST API
    Login(login::LoginArgs),
    /// Simulate one MQTT client or a fleet of clients, optionally with misbehavior
    Simulate(SimulateArgs),
    /// Create a private CA and issue certificates
    #[command(subcommand)]
    Certs(certs::CertsCommand),
    /// Print the OpenAPI document of the REST API
    Openapi(openapi::OpenapiArgs),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
    /// Write the manual pages of all commands to a folder
    Man(man::ManArgs),
    /// Print the version and the commit
    Version,
}

/// Escapes control characters, line separators and bidirectional controls. Otherwise a text from a
/// client could control the operator's terminal or imitate other output.
fn escape_for_terminal(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            if is_unsafe_for_terminal(c) {
                c.escape_unicode().collect()
            } else {
                vec![c]
            }
        })
        .collect()
}

fn is_unsafe_for_terminal(c: char) -> bool {
    let is_line_or_bidi_control = matches!(
        c,
        '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    c.is_control() || is_line_or_bidi_control
}

fn parse_client_id(text: &str) -> Result<ClientId> {
    ClientId::new(text).map_err(|error| anyhow!("invalid client id {text:?}: {error}"))
}

/// Options that name the configuration file or override single settings.
#[derive(Debug, Clone, Args)]
struct ConfigSource {
    /// Configuration file (TOML); `cloud-connector config --defaults` prints a template
    #[arg(long = "config", value_name = "FILE")]
    config_file: Option<PathBuf>,
    /// Data folder [setting: data.dir]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Listen address of the REST API [setting: http.listen]
    #[arg(long = "http", value_name = "HOST:PORT")]
    http_address: Option<String>,
    /// Listen address of the embedded broker [setting: broker.listen]
    #[arg(long = "mqtt", value_name = "HOST:PORT")]
    mqtt_address: Option<String>,
}

impl ConfigSource {
    fn load(&self) -> Result<LoadedConfig> {
        let mut flags = Vec::new();
        if let Some(dir) = &self.data_dir {
            flags.push(("--data-dir", "data.dir", dir.display().to_string()));
        }
        if let Some(address) = &self.http_address {
            flags.push(("--http", "http.listen", address.clone()));
        }
        if let Some(address) = &self.mqtt_address {
            flags.push(("--mqtt", "broker.listen", address.clone()));
        }
        let config_file = self.config_file.clone();
        Ok(crate::config::load(&Overrides { config_file, flags })?)
    }
}

/// Parses the command line and runs the command.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::UpdateInventory(args) => update::run(LookupJob::InventoryRefresh, &args),
        Command::UpdateTenantless(args) => update::run(LookupJob::Tenantless, &args),
        Command::UpdatePresence(args) => update_presence::run(&args),
        Command::Tenantless(command) => tenantless::run(&command),
        Command::Report(command) => report::run(&command),
        Command::DeadLetters(command) => dead_letters::run(&command),
        Command::Connections(command) => connections::run(&command),
        Command::Send(args) => send::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Events(args) => events::run(&args),
        Command::Login(args) => login::run(&args),
        Command::Simulate(args) => simulator::run(&args),
        Command::Certs(command) => certs::run(&command),
        Command::Openapi(args) => openapi::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Version => version::run(),
    };
    let exit_code = match result {
        Ok(code) => code,
        // The process that reads standard output, such as `head`, has exited. That is not an error.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            service::logs::print_error(&format!("cloud-connector: {}", format_error(&error)));
            exit_code_of(&error)
        }
    };
    service::logs::flush();
    exit_code
}

/// Returns the exit code for an error: 1, or the exit code of a failed REST request.
fn exit_code_of(error: &anyhow::Error) -> ExitCode {
    let rest_error = error.downcast_ref::<RestError>();
    rest_error.map_or(ExitCode::FAILURE, RestError::exit_code)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io_error = error.downcast_ref::<std::io::Error>();
    io_error.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Formats an error and its causes in one line. If the outermost message has the form
/// `problem; fix`, the causes are inserted after the problem, before the fix.
fn format_error(error: &anyhow::Error) -> String {
    let mut messages = error.chain().map(ToString::to_string);
    let outermost = messages.next().unwrap_or_default();
    let causes: Vec<String> = messages
        .filter(|cause| !outermost.contains(cause.as_str()))
        .collect();
    if causes.is_empty() {
        return outermost;
    }
    match outermost.split_once("; ") {
        Some((problem, fix)) => format!("{problem}: {}; {fix}", causes.join(": ")),
        None => format!("{outermost}: {}", causes.join(": ")),
    }
}

/// Runs an async command on a new Tokio runtime.
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
    fn command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn control_characters_are_escaped_and_printable_characters_are_not() {
        assert_eq!(
            escape_for_terminal("a\x1b[2Jb\u{9b}c"),
            "a\\u{1b}[2Jb\\u{9b}c"
        );
        assert_eq!(escape_for_terminal("a\n\u{202e}b"), "a\\u{a}\\u{202e}b");
        assert_eq!(escape_for_terminal("é😀 x"), "é😀 x");
    }

    #[test]
    fn an_error_is_one_line_with_the_problem_the_cause_and_the_fix() {
        let error = Err::<(), _>(std::io::Error::other("no space"))
            .context("data.dir: cannot create x; choose another folder")
            .unwrap_err();
        assert_eq!(
            format_error(&error),
            "data.dir: cannot create x: no space; choose another folder"
        );
    }
}
