//! Runs one schedule in this process.

use std::process::ExitCode;
use std::sync::Arc;

use tokio::runtime::Builder;

use crate::database::Database;
use crate::options::Options;
use crate::plan::Plan;
use crate::world::{TraceLine, World};
use crate::{distributed, embedded, fixed_random};

/// Maximum number of violations in a report.
const MAX_REPORTED_VIOLATIONS: usize = 10;

/// Start of the lines that contain the number of an event.
pub const COUNT_PREFIX: &str = "count ";

/// Runs the schedule of the seed and prints the hash of its trace. Prints a report if the schedule
/// fails.
pub fn run_in_this_process(options: &Options) -> ExitCode {
    fixed_random::set_seed(options.seed);
    fastrand::seed(options.seed);
    // The first runtime of the process: tokio counts the runtimes, and the count is a part of the seed
    // of their random numbers.
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("create the runtime of the simulation");
    let database = Arc::new(Database::create());
    let plan = Plan::new(options.seed);
    let world = runtime.block_on(async {
        let world = World::new(options.seed);
        let plan = plan.clone();
        if plan.is_embedded {
            embedded::run(&world, &database, plan, options.plant).await;
        } else {
            distributed::run(&world, &database, plan, options.plant).await;
        }
        world
    });
    let violations = world.violations();
    if options.prints_trace {
        print_plan(&plan);
        for line in world.trace_lines() {
            print_line(&line);
        }
    }
    println!("trace {:016x}", world.trace_hash());
    for (event, count) in world.counts() {
        println!("{COUNT_PREFIX}{count} {event}");
    }
    if violations.is_empty() {
        return ExitCode::SUCCESS;
    }
    if !options.prints_trace {
        print_report(&world, &violations);
    }
    for violation in violations.iter().take(MAX_REPORTED_VIOLATIONS) {
        println!("violation: {violation}");
    }
    ExitCode::FAILURE
}

fn print_plan(plan: &Plan) {
    let mut plan = plan.clone();
    for client in &mut plan.clients {
        client.steps.clear();
    }
    println!("{plan:#?}");
}

fn print_line(line: &TraceLine) {
    let TraceLine { time, client, text } = line;
    let client = client.as_deref().unwrap_or_default();
    println!("{:>10.3} {client:10} {text}", time.as_secs_f64());
}

/// Prints the trace of the first client with a violation, with all faults.
fn print_report(world: &World, violations: &[String]) {
    let client = violations.iter().find_map(|violation| {
        let (client, _) = violation.split_once(": ")?;
        client.starts_with("client-").then(|| client.to_owned())
    });
    let is_relevant = |line: &&TraceLine| match (&line.client, &client) {
        (None, _) => !line.text.contains(": ok"),
        (Some(line_client), Some(client)) => line_client == client,
        (Some(_), None) => false,
    };
    for line in world.trace_lines().iter().filter(is_relevant) {
        print_line(line);
    }
}
