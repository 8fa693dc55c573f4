//! A simulated process: a set of tasks that crashes, pauses and restarts.
//!
//! A crash has no effect that others can see, except that the process sends and receives nothing any
//! more. Therefore every request to another component starts and ends with [`Process::fault_point`],
//! and a crash at any of these points is as good as a crash between any two awaits: between two
//! requests, the process changes only its own memory.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::world::World;
use domain::Clock;
use service::TaskGroup;

/// Time that a process has for a shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Running,
    Paused,
    Dead,
}

/// One run of a simulated process.
pub struct Process {
    /// Name and number of the run, for example `record-1#2`.
    pub name: String,
    pub clock: Arc<dyn Clock>,
    pub world: Arc<World>,
    status: watch::Sender<Status>,
    /// Number of fault points until the process crashes. `None` if it does not crash at a fault
    /// point.
    points_until_crash: Mutex<Option<u64>>,
    /// Number of fault points until the process pauses. `None` if it does not pause at a fault point.
    points_until_pause: Mutex<Option<u64>>,
}

impl Process {
    fn new(world: &Arc<World>, name: String, clock: Arc<dyn Clock>, plan: &ProcessPlan) -> Self {
        let random_point = |percent| {
            let is_selected = !world.is_healed() && world.chance(percent);
            is_selected.then(|| world.between(0..=plan.max_points_before_fault))
        };
        Self {
            name,
            clock,
            world: world.clone(),
            status: watch::Sender::new(Status::Running),
            points_until_crash: Mutex::new(random_point(plan.crash_percent)),
            points_until_pause: Mutex::new(random_point(plan.pause_percent)),
        }
    }

    /// A point at which the process can crash or pause. A dead process waits forever.
    pub async fn fault_point(&self) {
        if self.is_reached(&self.points_until_crash) {
            self.world.trace(None, format!("{} crashes", self.name));
            self.world.count("crashes at a fault point");
            self.set_status(Status::Dead);
        }
        if self.is_reached(&self.points_until_pause) {
            // A pause at a random time would rarely hit a process that has just prepared a request.
            let duration = self.world.millis(1000..=20_000);
            self.world.count("pauses at a fault point");
            // The caller may drop this future during the pause.
            tokio::spawn(self.begin_pause(duration));
        }
        let mut status = self.status.subscribe();
        let _ = status.wait_for(|status| *status == Status::Running).await;
    }

    /// Stops all tasks of the process, as after SIGSTOP. The returned future waits for this time, and
    /// then resumes the process.
    fn begin_pause(&self, duration: Duration) -> impl Future<Output = ()> + use<> {
        let (name, world) = (self.name.clone(), self.world.clone());
        let status = self.status.clone();
        world.trace(None, format!("{name} pauses for {duration:?}"));
        set_status(&status, &world, Status::Paused);
        async move {
            sleep(duration).await;
            world.trace(None, format!("{name} resumes"));
            set_status(&status, &world, Status::Running);
        }
    }

    /// Counts down to a fault. Returns whether the fault must happen now.
    fn is_reached(&self, points: &Mutex<Option<u64>>) -> bool {
        if self.world.is_healed() || *self.status.borrow() != Status::Running {
            return false;
        }
        let mut points = points.lock();
        match &mut *points {
            Some(0) => {
                *points = None;
                true
            }
            Some(remaining) => {
                *remaining -= 1;
                false
            }
            None => false,
        }
    }

    pub fn is_dead(&self) -> bool {
        *self.status.borrow() == Status::Dead
    }

    /// Returns whether the process sends heartbeats to Kafka and renews its leases.
    pub fn is_running(&self) -> bool {
        *self.status.borrow() == Status::Running
    }

    pub async fn wait_until_dead(&self) {
        let mut status = self.status.subscribe();
        let _ = status.wait_for(|status| *status == Status::Dead).await;
    }

    fn set_status(&self, new_status: Status) {
        set_status(&self.status, &self.world, new_status);
    }
}

/// Changes the status of a process that is not dead.
fn set_status(status: &watch::Sender<Status>, world: &World, new_status: Status) {
    status.send_if_modified(|status| {
        let may_change = *status != Status::Dead && *status != new_status;
        if may_change {
            *status = new_status;
        }
        may_change
    });
    world.notify();
}

/// A fault of a process.
#[derive(Debug, Clone, Copy)]
pub enum ProcessFault {
    Crash,
    /// All tasks of the process stop for this time, as after SIGSTOP.
    Pause(Duration),
    /// The process stops as after SIGTERM, and starts again.
    Restart,
    /// The process is killed, and starts again after this time.
    Down(Duration),
}

/// How a process behaves under faults.
#[derive(Debug, Clone)]
pub struct ProcessPlan {
    /// Probability, in percent, that a run crashes at a random fault point.
    pub crash_percent: u64,
    /// Probability, in percent, that a run pauses at a random fault point.
    pub pause_percent: u64,
    /// Maximum number of fault points before the crash, and before the pause.
    pub max_points_before_fault: u64,
    /// Difference of the clock in each run, in seconds. After the last run, the list repeats.
    pub clock_skews: Vec<i64>,
}

/// Starts the tasks of a process. The tasks must end after the group is cancelled.
pub type StartTasks = Arc<dyn Fn(&Arc<Process>, &TaskGroup, &mut JoinSet<()>) + Send + Sync>;

/// Sends faults to a process that [`spawn`] runs.
#[derive(Clone)]
pub struct ProcessHandle {
    faults: mpsc::UnboundedSender<ProcessFault>,
}

impl ProcessHandle {
    pub fn inject(&self, fault: ProcessFault) {
        // `send` fails only after the end of the schedule.
        let _ = self.faults.send(fault);
    }
}

/// Runs a process, and starts it again after each crash.
pub fn spawn(
    world: &Arc<World>,
    name: &'static str,
    plan: ProcessPlan,
    start_tasks: StartTasks,
) -> ProcessHandle {
    let (sender, faults) = mpsc::unbounded_channel();
    tokio::spawn(supervise(world.clone(), name, plan, start_tasks, faults));
    ProcessHandle { faults: sender }
}

async fn supervise(
    world: Arc<World>,
    name: &'static str,
    plan: ProcessPlan,
    start_tasks: StartTasks,
    mut faults: mpsc::UnboundedReceiver<ProcessFault>,
) {
    let mut clock_skews = plan.clock_skews.iter().cycle();
    for run in 1.. {
        let clock = world.clock(clock_skews.next().copied().unwrap_or(0));
        let process = Process::new(&world, format!("{name}#{run}"), clock, &plan);
        let process = Arc::new(process);
        world.trace(None, format!("{} starts", process.name));
        let down_time = run_until_stopped(&world, &process, &start_tasks, &mut faults).await;
        sleep(down_time.unwrap_or_else(|| world.millis(100..=8000))).await;
    }
}

/// Runs the tasks of a process until it crashes or has shut down. Returns the time after which the
/// process must start again, if a fault determines it.
async fn run_until_stopped(
    world: &Arc<World>,
    process: &Arc<Process>,
    start_tasks: &StartTasks,
    faults: &mut mpsc::UnboundedReceiver<ProcessFault>,
) -> Option<Duration> {
    let group = TaskGroup::new();
    let mut tasks = JoinSet::new();
    start_tasks(process, &group, &mut tasks);
    loop {
        let fault = tokio::select! {
            biased;
            () = process.wait_until_dead() => None,
            Some(result) = tasks.join_next() => {
                let problem = result.map_or_else(|error| error.to_string(), |()| "it ended".to_owned());
                world.report_violation(None, format!("a task of {} failed: {problem}", process.name));
                None
            }
            fault = faults.recv() => fault,
        };
        match fault {
            Some(ProcessFault::Pause(duration)) => {
                world.count("pauses at a random time");
                process.begin_pause(duration).await;
            }
            Some(ProcessFault::Restart) => {
                world.trace(None, format!("{} shuts down", process.name));
                world.count("restarts");
                group.cancel();
                let all_ended = async {
                    while let Some(result) = tasks.join_next().await {
                        if let Err(error) = result {
                            let name = &process.name;
                            world.report_violation(
                                None,
                                format!("a task of {name} failed: {error}"),
                            );
                        }
                    }
                };
                tokio::select! {
                    () = all_ended => {}
                    () = process.wait_until_dead() => {}
                    () = sleep(SHUTDOWN_TIMEOUT) => {}
                }
                process.set_status(Status::Dead);
                return None;
            }
            Some(fault @ (ProcessFault::Crash | ProcessFault::Down(_))) => {
                world.trace(None, format!("{} is killed", process.name));
                world.count("crashes at a random time");
                process.set_status(Status::Dead);
                return match fault {
                    ProcessFault::Down(duration) => Some(duration),
                    _ => None,
                };
            }
            None => return None,
        }
    }
}
