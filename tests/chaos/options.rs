//! The command line. `cargo test` hands its own arguments to every test program, so those are taken
//! for what they mean there.

use crate::plan::Kind;

#[derive(Debug, Clone)]
pub struct Options {
    pub seed: u64,
    /// None for the short form.
    pub minutes: Option<f64>,
    pub kinds: Vec<Kind>,
}

impl Options {
    /// None if there is nothing to do.
    pub fn read(mut args: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let bytes = uuid::Uuid::new_v4().into_bytes();
        let mut options = Self {
            // Short enough to be typed.
            seed: u64::from(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
            minutes: None,
            kinds: vec![Kind::Embedded, Kind::Distributed],
        };
        let mut filters = Vec::new();
        while let Some(arg) = args.next() {
            let (name, given) = match arg.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (arg.as_str(), None),
            };
            let mut value = || {
                let next = given.clone().or_else(|| args.next());
                next.ok_or(format!("{name} wants a value"))
            };
            match name {
                "--seed" => options.seed = number(name, &value()?)?,
                "--minutes" => options.minutes = Some(number(name, &value()?)?),
                "--set-up" => options.kinds = kinds(&value()?)?,
                "--list" => {
                    println!("chaos: test");
                    return Ok(None);
                }
                "--skip" => {
                    if "chaos".contains(&value()?) {
                        return Ok(None);
                    }
                }
                // Only some of the tests, of which this is none.
                "--ignored" => return Ok(None),
                "--test-threads" | "--color" | "--format" | "--logfile" | "-Z" => {
                    value()?;
                }
                flag if flag.starts_with('-') => {}
                filter => filters.push(filter.to_owned()),
            }
        }
        let is_meant = filters.is_empty()
            || filters
                .iter()
                .any(|filter| "chaos".contains(filter.as_str()));
        Ok(is_meant.then_some(options))
    }

    /// What repeats the run.
    pub fn command(&self) -> String {
        let set_up = match self.kinds[..] {
            [kind] => kind.name(),
            _ => "both",
        };
        // The short form is one round, and so is the long one if it has no time.
        let minutes = self.minutes.unwrap_or(0.0);
        format!(
            "make chaos ARGS=\"--seed {} --minutes {minutes} --set-up {set_up}\"",
            self.seed
        )
    }
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    let read = text.parse();
    read.map_err(|_| format!("{name} wants a number, not {text}"))
}

fn kinds(text: &str) -> Result<Vec<Kind>, String> {
    match text {
        "embedded" => Ok(vec![Kind::Embedded]),
        "distributed" => Ok(vec![Kind::Distributed]),
        "both" => Ok(vec![Kind::Embedded, Kind::Distributed]),
        other => Err(format!(
            "--set-up is embedded, distributed or both, not {other}"
        )),
    }
}
