//! The order of the commits of an assignment.

use std::sync::Arc;

use parking_lot::Mutex;

/// Ends the commits of the checks before the last commit of an assignment. Checks run on another
/// thread. Without this order, the older offsets of a check could replace newer offsets of this
/// consumer or of the next owner of the partitions.
#[derive(Clone, Default)]
pub(super) struct CommitOrder {
    has_ended: Arc<Mutex<bool>>,
}

impl CommitOrder {
    /// Runs the commit of a check. Returns `None` if the commits of checks have ended.
    pub fn run<T>(&self, commit: impl FnOnce() -> T) -> Option<T> {
        let has_ended = self.has_ended.lock();
        (!*has_ended).then(commit)
    }

    /// Waits for the running commit of a check, and prevents later ones. Blocks the thread.
    pub fn end(&self) {
        *self.has_ended.lock() = true;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_end_waits_for_a_running_commit() {
        let order = CommitOrder::default();
        let commits = Arc::new(Mutex::new(Vec::new()));
        let (started, wait_for_start) = mpsc::channel();
        let (finish, wait_for_finish) = mpsc::channel::<()>();
        let (check_order, check_commits) = (order.clone(), commits.clone());
        let check = std::thread::spawn(move || {
            check_order.run(|| {
                started.send(()).unwrap();
                wait_for_finish.recv().unwrap();
                check_commits.lock().push("check");
            })
        });
        wait_for_start.recv().unwrap();
        let last_commits = commits.clone();
        let last = std::thread::spawn(move || {
            order.end();
            last_commits.lock().push("last");
        });
        finish.send(()).unwrap();
        check.join().unwrap();
        last.join().unwrap();
        assert_eq!(*commits.lock(), ["check", "last"]);
    }

    #[test]
    fn no_commit_runs_after_the_end() {
        let order = CommitOrder::default();
        assert_eq!(order.run(|| 1), Some(1));
        order.end();
        assert_eq!(order.clone().run(|| 2), None);
    }
}
