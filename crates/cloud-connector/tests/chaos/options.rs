//! Command line options of the chaos test. `cargo test` passes its own arguments to every test
//! program. Therefore the chaos test also accepts the options of the standard test harness.

use std::collections::BTreeSet;

use crate::faults::FaultKind;
use crate::plan::DeploymentMode;

/// Marks a process that runs in its own namespaces. Only `namespaces` passes this option.
pub const IN_NAMESPACES_OPTION: &str = "--in-namespaces";

#[derive(Debug, Clone)]
pub struct Options {
    pub seed: u64,
    /// Minimum duration of the run, in minutes. `None` means that the run has only one round.
    pub min_run_minutes: Option<f64>,
    pub modes: Vec<DeploymentMode>,
    /// The kinds of faults that the run may inject.
    pub fault_kinds: BTreeSet<FaultKind>,
    pub is_in_namespaces: bool,
}

impl Options {
    /// Parses the command line arguments. Returns `None` if the arguments do not select the chaos
    /// test.
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let random_bytes = uuid::Uuid::new_v4().into_bytes();
        let mut options = Self {
            // A random seed of 32 bits is sufficient, and is short enough to type.
            seed: u64::from(u32::from_be_bytes([
                random_bytes[0],
                random_bytes[1],
                random_bytes[2],
                random_bytes[3],
            ])),
            min_run_minutes: None,
            modes: vec![DeploymentMode::Embedded, DeploymentMode::Distributed],
            fault_kinds: FaultKind::ALL.into(),
            is_in_namespaces: false,
        };
        let mut test_filters = Vec::new();
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
                "--minutes" => options.min_run_minutes = Some(parse_number(name, &value()?)?),
                "--mode" => options.modes = parse_modes(&value()?)?,
                "--faults" => options.fault_kinds = parse_fault_kinds(&value()?)?,
                IN_NAMESPACES_OPTION => options.is_in_namespaces = true,
                "--list" => {
                    println!("chaos: test");
                    return Ok(None);
                }
                "--skip" => {
                    if "chaos".contains(&value()?) {
                        return Ok(None);
                    }
                }
                // The option `--ignored` selects only ignored tests. The chaos test is not ignored,
                // so the option does not select it.
                "--ignored" => return Ok(None),
                "--test-threads" | "--color" | "--format" | "--logfile" | "-Z" => {
                    value()?;
                }
                flag if flag.starts_with('-') => {}
                filter => test_filters.push(filter.to_owned()),
            }
        }
        let is_selected = test_filters.is_empty()
            || test_filters
                .iter()
                .any(|filter| "chaos".contains(filter.as_str()));
        Ok(is_selected.then_some(options))
    }

    /// Returns the command that repeats the run.
    pub fn repeat_command(&self) -> String {
        let mode = match self.modes[..] {
            [mode] => mode.as_str(),
            _ => "both",
        };
        // `make chaos` sets a duration by default. A run with only one round therefore needs an
        // explicit duration of 0 minutes.
        let minutes = self.min_run_minutes.unwrap_or(0.0);
        let faults = if self.fault_kinds == FaultKind::ALL.into() {
            String::new()
        } else {
            let names: Vec<&str> = self.fault_kinds.iter().map(|kind| kind.as_str()).collect();
            format!(" --faults {}", names.join(","))
        };
        format!(
            "make chaos ARGS=\"--seed {} --minutes {minutes} --mode {mode}{faults}\"",
            self.seed
        )
    }
}

fn parse_number<T: std::str::FromStr>(option_name: &str, text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{option_name} needs a number, not {text}"))
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

fn parse_fault_kinds(text: &str) -> Result<BTreeSet<FaultKind>, String> {
    let parse_kind = |name: &str| {
        let kind = FaultKind::ALL.iter().find(|kind| kind.as_str() == name);
        kind.copied().ok_or_else(|| {
            let names = FaultKind::ALL.map(FaultKind::as_str).join(", ");
            format!("--faults: {name} is not one of {names}")
        })
    };
    text.split(',').map(parse_kind).collect()
}
