//! Runs the simulation with fixed seeds, and shows that it finds planted bugs.

use std::process::Command;

/// Runs the simulation. Returns whether all schedules passed, and the output.
fn simulate(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_fault-simulation"))
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text + &errors)
}

#[test]
fn one_hundred_schedules_end_in_the_state_of_the_model() {
    let (passed, output) = simulate(&["--seed", "1", "--schedules", "100"]);
    assert!(passed, "{output}");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let (passed, output) = simulate(&["--seed", "1", "--schedules", "6", "--repeat"]);
    assert!(passed, "{output}");
}

/// Asserts that the simulation finds a planted bug with one of these seeds, and prints the seed and
/// the command that repeats the schedule.
#[track_caller]
fn assert_bug_is_found(bug: &str, first_seed: &str, schedules: &str, violation: &str) {
    let seeds = ["--seed", first_seed, "--schedules", schedules];
    let (passed, output) = simulate(&[&seeds[..], &["--plant", bug]].concat());
    assert!(!passed, "the simulation does not find the bug {bug}");
    assert!(output.contains(violation), "{output}");
    assert!(output.contains("the schedule with the seed"), "{output}");
    let command = format!("--plant {bug} --trace");
    assert!(output.contains(&command), "{output}");
}

#[test]
fn a_skipped_fence_check_is_found() {
    assert_bug_is_found("skipped-fence", "1", "100", "violation: client-");
}

#[test]
fn an_acknowledgement_before_the_commit_is_found() {
    assert_bug_is_found("early-ack", "1", "10", "not durable");
}

#[test]
fn a_lookup_outage_that_counts_as_not_found_is_found() {
    let violation = "the gateway never responded \"not found\"";
    assert_bug_is_found("outage-as-not-found", "1", "20", violation);
}

#[test]
fn an_unknown_argument_is_rejected() {
    let (passed, output) = simulate(&["--seeds", "1"]);
    assert!(!passed);
    assert!(output.contains("unknown argument --seeds"), "{output}");
}
