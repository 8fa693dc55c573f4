//! Command-line arguments of `simulate`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

const TLS_HEADING: &str = "TLS";
const FLEET_HEADING: &str = "Fleet";
const TRAFFIC_HEADING: &str = "Traffic";
const OUTPUT_HEADING: &str = "Output";

/// Output format of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Text for people.
    Text,
    /// One JSON document.
    Json,
}

/// Command-line arguments of `simulate`.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// Address of the MQTT broker; with TLS, use the host name in the broker's certificate
    #[arg(
        long = "mqtt",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:1883"
    )]
    pub broker_address: String,
    /// Prefix of all MQTT topics
    #[arg(long, value_name = "PREFIX", default_value = "redhat/insights")]
    pub topic_prefix: String,

    /// Client id; with --clients N, the client ids are ID-0 to ID-(N-1) [default: a random UUID]
    #[arg(long = "id", value_name = "ID", help_heading = FLEET_HEADING)]
    pub client_id: Option<String>,
    /// Number of clients
    #[arg(long = "clients", value_name = "N", default_value_t = 1, help_heading = FLEET_HEADING,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub client_count: u32,
    /// Message format of the clients; every fifth handshake client is a proxy
    #[arg(long = "dialect", value_enum, default_value_t = DialectMix::Status,
          help_heading = FLEET_HEADING)]
    pub dialect_mix: DialectMix,
    /// Publish handshakes and offline messages to PREFIX/status/ID instead of PREFIX/in/ID
    #[arg(long = "handshake-status-topic", help_heading = FLEET_HEADING)]
    pub uses_handshake_status_topic: bool,
    /// Number of clients that connect per second during startup
    #[arg(long, value_name = "N", default_value_t = 500, help_heading = FLEET_HEADING,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub connect_rate: u32,

    /// Number of updates that the whole fleet publishes per second after startup; an update is an
    /// online message with changed tags and facts
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = TRAFFIC_HEADING)]
    pub update_rate: u32,
    /// Stop after this time, which includes the startup; for example 30s or 5m [default: run until
    /// Ctrl-C]
    #[arg(long = "duration", value_name = "DURATION", value_parser = parse_duration,
          help_heading = TRAFFIC_HEADING)]
    pub run_duration: Option<Duration>,
    /// Reconnect storm: after startup, all clients repeatedly drop their connection and reconnect;
    /// without DURATION, the storm lasts until the end
    #[arg(long = "storm", value_name = "DURATION", value_parser = parse_duration, num_args = 0..=1,
          default_missing_value = "8760h", help_heading = TRAFFIC_HEADING)]
    pub storm_duration: Option<Duration>,
    /// Make all clients misbehave in this way; can be repeated
    #[arg(long = "misbehave", value_enum, value_name = "KIND", help_heading = TRAFFIC_HEADING)]
    pub misbehaviors: Vec<Misbehavior>,

    /// Folder that `cloud-connector certs init` created; certificates for the clients are issued
    /// there if they are missing
    #[arg(long, value_name = "DIR", conflicts_with = "ca_file", help_heading = TLS_HEADING)]
    pub tls_dir: Option<PathBuf>,
    /// CA certificate that signed the broker's certificate (PEM); enables TLS
    #[arg(long = "ca", value_name = "FILE", requires_all = ["cert_file", "key_file"],
          help_heading = TLS_HEADING)]
    pub ca_file: Option<PathBuf>,
    /// Client certificate (PEM) for a single client; the common name of the certificate must be the
    /// client id
    #[arg(long = "cert", value_name = "FILE", requires = "ca_file", help_heading = TLS_HEADING)]
    pub cert_file: Option<PathBuf>,
    /// Private key of the client certificate (PEM)
    #[arg(long = "key", value_name = "FILE", requires = "ca_file", help_heading = TLS_HEADING)]
    pub key_file: Option<PathBuf>,

    /// Format of the final summary; with json, standard output contains only the summary
    #[arg(long = "output", short, value_enum, default_value_t = OutputFormat::Text,
          help_heading = OUTPUT_HEADING)]
    pub output_format: OutputFormat,
    /// Print only the summary: no progress and no events
    #[arg(long, short, help_heading = OUTPUT_HEADING)]
    pub quiet: bool,
}

/// Which dialects the clients of the fleet use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DialectMix {
    /// All clients publish online and offline messages, like rhc and yggdrasil
    Status,
    /// All clients publish retained handshake messages
    Handshake,
    /// Every second client uses the handshake dialect, the others the status dialect
    Mixed,
}

/// A way in which the clients deviate from correct behavior.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Misbehavior {
    /// Publish invalid payloads before each online message
    Garbage,
    /// Reconnect at once when the service requests a delay
    IgnoreDelay,
    /// Publish no online message after a reconnect, like newer clients; affects only the status
    /// dialect
    NoOnline,
    /// Set the `sent` time of messages to five years in the future and to five years in the past,
    /// alternately
    ClockSkew,
    /// Publish five online messages per connect, concurrently and out of order
    Burst,
    /// Publish each online message twice with the same message_id
    Duplicate,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    text.parse::<jiff::SignedDuration>()
        .ok()
        .and_then(|signed| Duration::try_from(signed).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| {
            "expected a duration above zero with a unit, such as 500ms, 30s or 5m".to_owned()
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct TestCli {
        #[command(flatten)]
        args: SimulateArgs,
    }

    fn parse_args(options: &str) -> Result<SimulateArgs, String> {
        let command_line = std::iter::once("simulate").chain(options.split_whitespace());
        TestCli::try_parse_from(command_line)
            .map(|cli| cli.args)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn durations_need_a_unit_and_must_be_positive() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1m 30s"), Ok(Duration::from_secs(90)));
        for invalid in ["", "30", "0s", "-3s", "soon"] {
            let error = parse_duration(invalid).unwrap_err();
            assert!(error.contains("30s"), "{invalid}: {error}");
        }
    }

    #[test]
    fn storm_duration_is_optional() {
        assert_eq!(parse_args("").unwrap().storm_duration, None);
        let limited = parse_args("--storm 10s --quiet").unwrap();
        assert_eq!(limited.storm_duration, Some(Duration::from_secs(10)));
        let unlimited = parse_args("--storm --quiet").unwrap();
        assert!(unlimited.storm_duration.unwrap() > Duration::from_hours(1000) && unlimited.quiet);
    }

    #[test]
    fn misbehave_can_be_repeated_and_its_error_lists_the_valid_kinds() {
        let args = parse_args("--misbehave garbage --misbehave no-online").unwrap();
        assert_eq!(
            args.misbehaviors,
            [Misbehavior::Garbage, Misbehavior::NoOnline]
        );
        let error = parse_args("--misbehave unknown").unwrap_err();
        assert!(error.contains("clock-skew"), "{error}");
    }
}
