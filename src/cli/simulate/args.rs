//! Command-line arguments of `simulate`.

use std::path::PathBuf;
use std::time::Duration;

use crate::cli::Output;
use clap::{Args, ValueEnum};

const TLS: &str = "TLS";
const FLEET: &str = "Fleet";
const TRAFFIC: &str = "Traffic";
const OUTPUT: &str = "Output";

#[derive(Debug, Args)]
pub(in crate::cli) struct SimulateArgs {
    /// Broker address; with TLS, use the host name of the broker's certificate
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:1883")]
    pub mqtt: String,
    /// Topic prefix
    #[arg(long, value_name = "PREFIX", default_value = "redhat/insights")]
    pub topic_prefix: String,

    /// Client id; with --clients N, the clients are ID-0 to ID-(N-1) [default: a random UUID]
    #[arg(long, value_name = "ID", help_heading = FLEET)]
    pub id: Option<String>,
    /// Number of clients
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = FLEET,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub clients: u32,
    /// Dialect of the clients; every fifth handshake client is a proxy
    #[arg(long, value_enum, default_value_t = DialectMix::Status, help_heading = FLEET)]
    pub dialect: DialectMix,
    /// Publish handshakes and offline messages to PREFIX/status/ID instead of PREFIX/in/ID
    #[arg(long, help_heading = FLEET)]
    pub handshake_status_topic: bool,
    /// New connections per second during startup
    #[arg(long, value_name = "N", default_value_t = 500, help_heading = FLEET,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub connect_rate: u32,

    /// Updates per second for the whole fleet, after startup; an update is an online message with
    /// changed tags and facts
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = TRAFFIC)]
    pub update_rate: u32,
    /// Stop after this time (startup included), such as 30s or 5m [default: run until Ctrl-C]
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = TRAFFIC)]
    pub duration: Option<Duration>,
    /// Reconnect storm: after startup, all clients drop and reconnect repeatedly, for DURATION or
    /// until the end
    #[arg(long, value_name = "DURATION", value_parser = duration, num_args = 0..=1,
          default_missing_value = "8760h", help_heading = TRAFFIC)]
    pub storm: Option<Duration>,
    /// Deviate from correct client behavior; can be repeated
    #[arg(long, value_enum, value_name = "KIND", help_heading = TRAFFIC)]
    pub misbehave: Vec<Misbehavior>,

    /// Folder of `cloud-connector certs init`; clients without a certificate there get one
    #[arg(long, value_name = "DIR", conflicts_with = "ca", help_heading = TLS)]
    pub tls_dir: Option<PathBuf>,
    /// CA certificate that signed the broker's certificate (PEM); enables TLS
    #[arg(long, value_name = "FILE", requires_all = ["cert", "key"], help_heading = TLS)]
    pub ca: Option<PathBuf>,
    /// Client certificate (PEM), for a single client; its common name must be the client id
    #[arg(long, value_name = "FILE", requires = "ca", help_heading = TLS)]
    pub cert: Option<PathBuf>,
    /// Private key of the client certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "ca", help_heading = TLS)]
    pub key: Option<PathBuf>,

    /// Format of the final summary; with json, standard output contains nothing else
    #[arg(long, short, value_enum, default_value_t = Output::Text, help_heading = OUTPUT)]
    pub output: Output,
    /// Print only the summary: no progress and no events
    #[arg(long, short, help_heading = OUTPUT)]
    pub quiet: bool,
}

/// Distribution of dialects over the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum DialectMix {
    /// Online and offline messages, like rhc and yggdrasil
    Status,
    /// Retained handshake messages
    Handshake,
    /// Status and handshake clients, alternately
    Mixed,
}

/// Deviation from correct client behavior.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Misbehavior {
    /// Publish invalid payloads before each online message
    Garbage,
    /// Reconnect at once when the service requests a delay
    IgnoreDelay,
    /// Publish no online message after a reconnect, like newer clients (status dialect)
    NoOnline,
    /// Set `sent` five years ahead and five years back, alternately
    ClockSkew,
    /// Publish five online messages per connect, concurrently and out of order
    Burst,
    /// Publish each online message twice with the same message_id
    Duplicate,
}

fn duration(text: &str) -> Result<Duration, String> {
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

    fn parse(options: &str) -> Result<SimulateArgs, String> {
        let command_line = std::iter::once("simulate").chain(options.split_whitespace());
        TestCli::try_parse_from(command_line)
            .map(|cli| cli.args)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn durations_need_a_unit_and_must_be_positive() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        for invalid in ["", "30", "0s", "-3s", "soon"] {
            let error = duration(invalid).unwrap_err();
            assert!(error.contains("30s"), "{invalid}: {error}");
        }
    }

    #[test]
    fn storm_duration_is_optional() {
        assert_eq!(parse("").unwrap().storm, None);
        let limited = parse("--storm 10s --quiet").unwrap();
        assert_eq!(limited.storm, Some(Duration::from_secs(10)));
        let unlimited = parse("--storm --quiet").unwrap();
        assert!(unlimited.storm.unwrap() > Duration::from_hours(1000) && unlimited.quiet);
    }

    #[test]
    fn misbehave_is_repeatable_and_an_unknown_kind_prints_the_valid_kinds() {
        let args = parse("--misbehave garbage --misbehave no-online").unwrap();
        assert_eq!(
            args.misbehave,
            [Misbehavior::Garbage, Misbehavior::NoOnline]
        );
        let error = parse("--misbehave unknown").unwrap_err();
        assert!(error.contains("clock-skew"), "{error}");
    }
}
