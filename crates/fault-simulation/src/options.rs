//! Command line options.

use std::time::Duration;

/// Number of schedules without the option `--schedules`.
const DEFAULT_SCHEDULES: u64 = 1000;

/// A bug that the simulation adds to a component, to show that the simulation finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// The database does not check whether another process has acquired the partitions of a batch.
    SkippedFence,
    /// A message is acknowledged when it is received, before it is durable.
    EarlyAck,
    /// An outage of the gateway counts as the result "not found".
    OutageAsNotFound,
}

impl Plant {
    const ALL: [Self; 3] = [Self::SkippedFence, Self::EarlyAck, Self::OutageAsNotFound];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::SkippedFence => "skipped-fence",
            Self::EarlyAck => "early-ack",
            Self::OutageAsNotFound => "outage-as-not-found",
        }
    }
}

/// What the program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Seed of the first schedule. The following schedules have the following seeds.
    pub seed: u64,
    pub schedules: u64,
    pub plant: Option<Plant>,
    /// Number of schedules that run at the same time, each in its own process.
    pub jobs: usize,
    /// Runs each schedule twice and compares the traces.
    pub repeats: bool,
    /// Runs one schedule in this process and prints its trace.
    pub prints_trace: bool,
    /// Runs one schedule in this process. Only the program itself passes this option.
    pub is_child: bool,
}

pub const USAGE: &str = "usage: fault-simulation [--seed N] [--schedules N] [--jobs N] [--repeat] \
     [--trace] [--plant skipped-fence|early-ack|outage-as-not-found]";

impl Options {
    /// Parses the command line arguments.
    ///
    /// # Errors
    /// If an argument is invalid.
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            seed: random_seed(),
            schedules: DEFAULT_SCHEDULES,
            plant: None,
            jobs: std::thread::available_parallelism().map_or(1, usize::from),
            repeats: false,
            prints_trace: false,
            is_child: false,
        };
        while let Some(name) = args.next() {
            let mut value = || args.next().ok_or(format!("{name} needs a value"));
            match name.as_str() {
                "--seed" => options.seed = parse_number(&name, &value()?)?,
                "--schedules" => options.schedules = parse_number(&name, &value()?)?,
                "--jobs" => options.jobs = parse_number(&name, &value()?)?,
                "--plant" => options.plant = Some(parse_plant(&value()?)?),
                "--repeat" => options.repeats = true,
                "--trace" => options.prints_trace = true,
                "--child" => options.is_child = true,
                _ => return Err(format!("unknown argument {name}; {USAGE}")),
            }
        }
        Ok(options)
    }

    /// Returns the arguments that repeat the schedule with this seed.
    pub fn arguments_for(&self, seed: u64) -> Vec<String> {
        let mut arguments = vec!["--seed".to_owned(), seed.to_string()];
        if let Some(plant) = self.plant {
            arguments.extend(["--plant".to_owned(), plant.as_str().to_owned()]);
        }
        arguments
    }
}

/// Returns a seed that is short enough to type.
fn random_seed() -> u64 {
    let now = std::time::SystemTime::now();
    let since_epoch = now.duration_since(std::time::UNIX_EPOCH);
    u64::from(since_epoch.unwrap_or(Duration::ZERO).subsec_nanos())
}

fn parse_number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    let number = text.parse();
    number.map_err(|_| format!("{name} needs a number, not {text}"))
}

fn parse_plant(text: &str) -> Result<Plant, String> {
    let plant = Plant::ALL.into_iter().find(|plant| plant.as_str() == text);
    plant.ok_or_else(|| {
        let names = Plant::ALL.map(Plant::as_str).join(", ");
        format!("--plant: {text} is not one of {names}")
    })
}
