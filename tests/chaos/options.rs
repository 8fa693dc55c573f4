//! Command line options. `cargo test` passes its own arguments to every test program, so the
//! options of the standard test harness are accepted, too.

use crate::plan::DeploymentMode;

#[derive(Debug, Clone)]
pub struct Options {
    pub seed: u64,
    /// Minimum duration. `None` for the short form: one round.
    pub minutes: Option<f64>,
    pub modes: Vec<DeploymentMode>,
}

impl Options {
    /// Parses the arguments. Returns `None` if they select no test to run.
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let bytes = uuid::Uuid::new_v4().into_bytes();
        let mut options = Self {
            // 32 bits are enough, and short enough to type.
            seed: u64::from(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
            minutes: None,
            modes: vec![DeploymentMode::Embedded, DeploymentMode::Distributed],
        };
        let mut filters = Vec::new();
        while let Some(arg) = args.next() {
            let (name, inline_value) = match arg.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (arg.as_str(), None),
            };
            let mut value = || {
                let value = inline_value.clone().or_else(|| args.next());
                value.ok_or(format!("{name} needs a value"))
            };
            match name {
                "--seed" => options.seed = parse_number(name, &value()?)?,
                "--minutes" => options.minutes = Some(parse_number(name, &value()?)?),
                "--mode" => options.modes = parse_modes(&value()?)?,
                "--list" => {
                    println!("chaos: test");
                    return Ok(None);
                }
                "--skip" => {
                    if "chaos".contains(&value()?) {
                        return Ok(None);
                    }
                }
                // Selects only ignored tests; this test is not ignored.
                "--ignored" => return Ok(None),
                "--test-threads" | "--color" | "--format" | "--logfile" | "-Z" => {
                    value()?;
                }
                flag if flag.starts_with('-') => {}
                filter => filters.push(filter.to_owned()),
            }
        }
        let is_selected = filters.is_empty()
            || filters
                .iter()
                .any(|filter| "chaos".contains(filter.as_str()));
        Ok(is_selected.then_some(options))
    }

    /// Returns the command that repeats the run.
    pub fn command(&self) -> String {
        let mode = match self.modes[..] {
            [mode] => mode.name(),
            _ => "both",
        };
        // `make chaos` sets a duration, so the short form needs an explicit 0.
        let minutes = self.minutes.unwrap_or(0.0);
        format!(
            "make chaos ARGS=\"--seed {} --minutes {minutes} --mode {mode}\"",
            self.seed
        )
    }
}

fn parse_number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{name} needs a number, not {text}"))
}

fn parse_modes(text: &str) -> Result<Vec<DeploymentMode>, String> {
    match text {
        "embedded" => Ok(vec![DeploymentMode::Embedded]),
        "distributed" => Ok(vec![DeploymentMode::Distributed]),
        "both" => Ok(vec![DeploymentMode::Embedded, DeploymentMode::Distributed]),
        other => Err(format!(
            "--mode must be embedded, distributed or both, not {other}"
        )),
    }
}
