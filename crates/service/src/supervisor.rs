//! Supervision of the tasks of this process.
//!
//! An essential task must run until shutdown. If an essential task ends earlier or panics, the
//! process can no longer do its work. The supervisor then records the failure,
//! [`Health`](crate::Health) reports it, and `runtime` shuts the process down.
//!
//! Tasks are spawned in a [`TaskGroup`](crate::TaskGroup). All groups of a process report to the
//! same supervisor.

#[cfg(test)]
mod tests;

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::metrics;

/// The name of a task in logs, in metrics and in the response of `/readiness`.
pub type TaskName = Cow<'static, str>;

/// Records which essential tasks are running, and the first failure of an essential task. All
/// clones refer to the same supervisor.
#[derive(Debug, Clone, Default)]
pub struct Supervisor {
    inner: Arc<SupervisorInner>,
}

#[derive(Debug, Default)]
struct SupervisorInner {
    first_failure: watch::Sender<Option<TaskFailure>>,
    running_tasks: Mutex<Vec<RunningTask>>,
}

#[derive(Debug, Clone)]
struct RunningTask {
    name: TaskName,
    abort_token: CancellationToken,
}

/// The failure of an essential task.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("task {task} {cause}")]
pub struct TaskFailure {
    /// Name of the task.
    pub task: TaskName,
    /// What happened to the task.
    pub cause: FailureCause,
}

/// What happened to a failed task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailureCause {
    /// The task returned before shutdown.
    Ended,
    /// The task was aborted by [`Supervisor::abort`].
    Aborted,
    /// The task panicked with this message.
    Panicked(String),
    /// The task found that the process cannot continue, for this reason.
    Failed(String),
}

impl fmt::Display for FailureCause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => formatter.write_str("ended before shutdown"),
            Self::Aborted => formatter.write_str("was aborted"),
            Self::Panicked(message) => write!(formatter, "panicked: {message}"),
            Self::Failed(reason) => write!(formatter, "failed: {reason}"),
        }
    }
}

impl TaskFailure {
    /// Returns the failure without the message of a panic and without the reason of a failed task,
    /// which are for the log.
    pub(crate) fn public_text(&self) -> String {
        let cause = match &self.cause {
            FailureCause::Panicked(_) => "panicked".to_owned(),
            FailureCause::Failed(_) => "failed".to_owned(),
            cause @ (FailureCause::Ended | FailureCause::Aborted) => cause.to_string(),
        };
        format!("task {} {cause}", self.task)
    }
}

impl Supervisor {
    /// Creates a supervisor without tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the first failure of an essential task. Returns `None` if no task has failed.
    #[must_use]
    pub fn first_failure(&self) -> Option<TaskFailure> {
        self.inner.first_failure.borrow().clone()
    }

    /// Waits until an essential task fails. Returns the first failure.
    pub async fn wait_for_failure(&self) -> TaskFailure {
        let mut first_failure = self.inner.first_failure.subscribe();
        loop {
            if let Some(failure) = first_failure.borrow_and_update().clone() {
                return failure;
            }
            // `changed` fails only if the sender is dropped. `self` contains the sender.
            let _ = first_failure.changed().await;
        }
    }

    /// Returns the names of the essential tasks that are running, in the order in which the tasks
    /// were spawned.
    #[must_use]
    pub fn running_tasks(&self) -> Vec<TaskName> {
        let running_tasks = self.inner.running_tasks.lock();
        running_tasks.iter().map(|task| task.name.clone()).collect()
    }

    /// Aborts the essential tasks with this name, as if they had failed. Returns whether there was
    /// such a task. Tests use this method to check that the process reacts to the failure.
    pub fn abort(&self, name: &str) -> bool {
        let mut is_found = false;
        for task in &*self.inner.running_tasks.lock() {
            if task.name == name {
                task.abort_token.cancel();
                is_found = true;
            }
        }
        is_found
    }

    /// Adds an essential task. The task counts as running until the returned value is dropped.
    pub(crate) fn register(&self, name: TaskName) -> TaskRegistration {
        metrics::register_task(&name);
        let abort_token = CancellationToken::new();
        self.inner.running_tasks.lock().push(RunningTask {
            name: name.clone(),
            abort_token: abort_token.clone(),
        });
        TaskRegistration {
            supervisor: self.clone(),
            name,
            abort_token,
        }
    }
}

/// An essential task in the list of running tasks. Dropping the value removes the task.
pub(crate) struct TaskRegistration {
    supervisor: Supervisor,
    name: TaskName,
    abort_token: CancellationToken,
}

impl TaskRegistration {
    /// Waits until [`Supervisor::abort`] is called for this task.
    pub(crate) async fn aborted(&self) {
        self.abort_token.cancelled().await;
    }

    /// Counts the failure of this task. Records the failure if it is the first one.
    pub(crate) fn record_failure(&self, cause: FailureCause) {
        metrics::count_task_failure(&self.name);
        let failure = TaskFailure {
            task: self.name.clone(),
            cause,
        };
        self.supervisor
            .inner
            .first_failure
            .send_if_modified(|first_failure| {
                let is_first = first_failure.is_none();
                first_failure.get_or_insert(failure);
                is_first
            });
    }
}

impl Drop for TaskRegistration {
    fn drop(&mut self) {
        let mut running_tasks = self.supervisor.inner.running_tasks.lock();
        // The abort token identifies the task, because several tasks can have the same name.
        running_tasks.retain(|task| task.abort_token != self.abort_token);
    }
}

/// Returns the message of a panic. `payload` is the value that the panic was raised with.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&'static str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "unknown panic value".to_owned()
    }
}
