//! Runs many schedules, each in its own process.

use std::collections::{BTreeMap, VecDeque};
use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::options::Options;
use crate::schedule::COUNT_PREFIX;

/// Runs all schedules and prints the result. Stops at the first failure.
pub fn run_schedules(options: &Options) -> ExitCode {
    let started_at = Instant::now();
    let last_seed = options.seed + options.schedules - 1;
    println!(
        "fault-simulation: {} schedules, seeds {} to {last_seed}",
        options.schedules, options.seed
    );
    let seeds: VecDeque<u64> = (options.seed..=last_seed).collect();
    let seeds = Arc::new(Mutex::new(seeds));
    let failures = Arc::new(Mutex::new(Vec::new()));
    let finished = Arc::new(Mutex::new(0_u64));
    let counts = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                while failures.lock().is_empty() {
                    let Some(seed) = seeds.lock().pop_front() else {
                        return;
                    };
                    match run_schedule(options, seed) {
                        Ok(output) => {
                            *finished.lock() += 1;
                            add_counts(&mut counts.lock(), &output);
                        }
                        Err(report) => failures.lock().push((seed, report)),
                    }
                }
            });
        }
    });
    let seconds = started_at.elapsed().as_secs_f64();
    let finished = *finished.lock();
    let rate = finished as f64 / seconds;
    let mut failures = failures.lock();
    failures.sort_by_key(|(seed, _)| *seed);
    let Some((seed, report)) = failures.first() else {
        for (event, count) in counts.lock().iter() {
            println!("{count:>10} {event}");
        }
        println!(
            "fault-simulation: {finished} schedules passed in {seconds:.1} s ({rate:.1} per second)"
        );
        return ExitCode::SUCCESS;
    };
    println!("{report}");
    println!(
        "fault-simulation: the schedule with the seed {seed} failed after {finished} schedules"
    );
    println!(
        "fault-simulation: to repeat it: make simulate-faults ARGS=\"{} --trace\"",
        options.arguments_for(*seed).join(" ")
    );
    ExitCode::FAILURE
}

/// Adds the numbers of events in the output of a schedule.
fn add_counts(counts: &mut BTreeMap<String, u64>, output: &str) {
    for line in output.lines() {
        let count = line.strip_prefix(COUNT_PREFIX);
        if let Some((count, event)) = count.and_then(|count| count.split_once(' ')) {
            *counts.entry(event.to_owned()).or_default() += count.parse().unwrap_or(0);
        }
    }
}

/// Runs one schedule in a process of its own and returns its output. Returns its report if it fails.
fn run_schedule(options: &Options, seed: u64) -> Result<String, String> {
    let output = run_child(options, seed)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{text}{errors}{}", output.status));
    }
    if options.repeats {
        let repeated = run_child(options, seed)?;
        if repeated.stdout != output.stdout {
            let repeated = String::from_utf8_lossy(&repeated.stdout).into_owned();
            return Err(format!("two runs of the seed differ: {text}{repeated}"));
        }
    }
    Ok(text)
}

fn run_child(options: &Options, seed: u64) -> Result<Output, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    Command::new(program)
        .arg("--child")
        .args(options.arguments_for(seed))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())
}
