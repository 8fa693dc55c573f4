//! What `simulate` can be asked for.

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
    /// Address and port of the broker; a name where its certificate needs one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:1883")]
    pub mqtt: String,
    /// Topic prefix
    #[arg(long, default_value = "redhat/insights")]
    pub prefix: String,

    /// Client id; with --clients above 1, what they begin with [default: a random one]
    #[arg(long, value_name = "ID", help_heading = FLEET)]
    pub id: Option<String>,
    /// Delivery many clients
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = FLEET,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub clients: u32,
    /// What they speak; mixed: by turns. Every fifth that speaks handshake is a proxy
    #[arg(long, value_enum, default_value_t = Dialects::Status, help_heading = FLEET)]
    pub dialect: Dialects,
    /// Handshakes and farewells go to PREFIX/status/ID instead of PREFIX/in/ID
    #[arg(long, help_heading = FLEET)]
    pub handshake_status_topic: bool,
    /// New connections a second while the fleet starts
    #[arg(long, value_name = "N", default_value_t = 500, help_heading = FLEET,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub connect_rate: u32,

    /// Changes of tags or facts a second that the whole fleet reports, once it has started
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = TRAFFIC)]
    pub rate: u32,
    /// Stop after this long, the start included, as in 30s or 5m [default: at Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = TRAFFIC)]
    pub duration: Option<Duration>,
    /// Once started, all drop their connections without a word and come back at once, over and
    /// over: for TIME, or to the end
    #[arg(long, value_name = "TIME", value_parser = duration, num_args = 0..=1,
          default_missing_value = "8760h", help_heading = TRAFFIC)]
    pub storm: Option<Duration>,
    /// Do something that a client should not, or that only some do; repeat it for several
    #[arg(long, value_enum, value_name = "KIND", help_heading = TRAFFIC)]
    pub misbehave: Vec<Misbehavior>,

    /// Folder of `cloud-connector certs init`: each client has its certificate there, or gets one
    #[arg(long, value_name = "DIR", conflicts_with = "ca", help_heading = TLS)]
    pub tls_dir: Option<PathBuf>,
    /// Authority that signed the broker's certificate (PEM); makes the connection TLS
    #[arg(long, value_name = "FILE", requires_all = ["cert", "key"], help_heading = TLS)]
    pub ca: Option<PathBuf>,
    /// The one client's certificate (PEM); its common name must be the id
    #[arg(long, value_name = "FILE", requires = "ca", help_heading = TLS)]
    pub cert: Option<PathBuf>,
    /// The certificate's key (PEM)
    #[arg(long, value_name = "FILE", requires = "ca", help_heading = TLS)]
    pub key: Option<PathBuf>,

    /// Delivery the summary at the end is written; with json, nothing else is on standard output
    #[arg(long, value_enum, default_value_t = Output::Text, help_heading = OUTPUT)]
    pub output: Output,
    /// Only the summary: no progress, no line per event
    #[arg(long, short, help_heading = OUTPUT)]
    pub quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Dialects {
    /// As rhc and yggdrasil do
    Status,
    /// Retained handshakes
    Handshake,
    /// Both, by turns
    Mixed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Misbehavior {
    /// Hostile payloads between good ones
    Garbage,
    /// Told to come back later, come back at once
    IgnoreDelay,
    /// No online after a reconnect, as newer clients (status dialect)
    NoOnline,
    /// `sent` years ahead and years back, by turns
    LyingClock,
    /// Five onlines at each connect, side by side and out of order
    Burst,
    /// Each online twice with one message_id
    Duplicate,
}

fn duration(text: &str) -> Result<Duration, String> {
    text.parse::<jiff::SignedDuration>()
        .ok()
        .and_then(|signed| Duration::try_from(signed).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "write a time with its unit, such as 500ms, 30s or 5m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: SimulateArgs,
    }

    fn read(line: &str) -> Result<SimulateArgs, String> {
        let words = std::iter::once("simulate").chain(line.split_whitespace());
        Line::try_parse_from(words)
            .map(|line| line.args)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn durations_have_a_unit_and_a_length() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        for bad in ["", "30", "0s", "-3s", "soon"] {
            let problem = duration(bad).unwrap_err();
            assert!(problem.contains("30s"), "{bad}: {problem}");
        }
    }

    #[test]
    fn a_storm_may_have_an_end() {
        assert_eq!(read("").unwrap().storm, None);
        let timed = read("--storm 10s --quiet").unwrap();
        assert_eq!(timed.storm, Some(Duration::from_secs(10)));
        let whole = read("--storm --quiet").unwrap();
        assert!(whole.storm.unwrap() > Duration::from_hours(1000) && whole.quiet);
    }

    #[test]
    fn misbehaviour_is_repeatable_and_an_unknown_one_names_those_that_are_known() {
        let args = read("--misbehave garbage --misbehave no-online").unwrap();
        assert_eq!(
            args.misbehave,
            [Misbehavior::Garbage, Misbehavior::NoOnline]
        );
        let problem = read("--misbehave rudely").unwrap_err();
        assert!(problem.contains("lying-clock"), "{problem}");
    }
}
