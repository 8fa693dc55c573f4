use std::time::Duration;

use tokio::sync::oneshot;

use super::*;
use crate::TaskGroup;

const TIMEOUT: Duration = Duration::from_secs(5);

fn supervisor_and_group() -> (Supervisor, TaskGroup) {
    let supervisor = Supervisor::new();
    let group = TaskGroup::supervised_by(&supervisor);
    (supervisor, group)
}

/// Stops the group and returns the first failure.
async fn failure_after_stop(supervisor: &Supervisor, group: &TaskGroup) -> Option<TaskFailure> {
    assert!(group.stop(TIMEOUT).await);
    supervisor.first_failure()
}

#[tokio::test]
async fn panic_of_an_essential_task_is_a_failure() {
    let (supervisor, group) = supervisor_and_group();
    group.spawn_essential("writer", async { panic!("disk {}", "full") });
    let failure = supervisor.wait_for_failure().await;
    assert_eq!(failure.task, "writer");
    assert_eq!(failure.cause, FailureCause::Panicked("disk full".into()));
    assert_eq!(failure.to_string(), "task writer panicked: disk full");
}

#[tokio::test]
async fn early_return_of_an_essential_task_is_a_failure() {
    let (supervisor, group) = supervisor_and_group();
    group.spawn_essential("writer", async {});
    let failure = supervisor.wait_for_failure().await;
    assert_eq!(failure.cause, FailureCause::Ended);
    assert_eq!(failure.to_string(), "task writer ended before shutdown");
}

#[tokio::test]
async fn return_of_an_essential_task_after_cancellation_is_not_a_failure() {
    let (supervisor, group) = supervisor_and_group();
    let task_group = group.clone();
    group.spawn_essential("writer", async move { task_group.cancelled().await });
    assert_eq!(supervisor.running_tasks(), ["writer"]);
    assert_eq!(failure_after_stop(&supervisor, &group).await, None);
    assert!(supervisor.running_tasks().is_empty());
}

#[tokio::test]
async fn panic_of_an_essential_task_after_cancellation_is_a_failure() {
    let (supervisor, group) = supervisor_and_group();
    let task_group = group.clone();
    group.spawn_essential("writer", async move {
        task_group.cancelled().await;
        panic!("cannot flush");
    });
    let failure = failure_after_stop(&supervisor, &group).await.unwrap();
    assert_eq!(failure.cause, FailureCause::Panicked("cannot flush".into()));
}

#[tokio::test]
async fn return_of_a_one_shot_task_is_not_a_failure_but_its_panic_is() {
    let (supervisor, group) = supervisor_and_group();
    group.spawn_one_shot("first sweep", async {});
    while !supervisor.running_tasks().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(supervisor.first_failure(), None);
    group.spawn_one_shot("second sweep", async { panic!("no rows") });
    assert_eq!(supervisor.wait_for_failure().await.task, "second sweep");
}

#[tokio::test]
async fn panic_of_an_item_is_counted_and_ends_only_this_item() {
    let metrics = crate::metrics::prometheus_handle();
    let (supervisor, group) = supervisor_and_group();
    let (sender, receiver) = oneshot::channel();
    group.spawn_item("connection", async { panic!("bad packet") });
    group.spawn_item("connection", async { sender.send("still works").unwrap() });
    assert_eq!(receiver.await, Ok("still works"));
    assert_eq!(failure_after_stop(&supervisor, &group).await, None);
    let counter = r#"cloud_connector_task_failures_total{task="connection"} 1"#;
    assert!(metrics.render().contains(counter));
}

#[tokio::test]
async fn abort_ends_the_task_with_this_name_as_a_failure() {
    let (supervisor, group) = supervisor_and_group();
    for name in ["reader", "writer"] {
        group.spawn_essential(name, std::future::pending());
    }
    group.spawn_one_shot("sweep", std::future::pending());
    assert_eq!(supervisor.running_tasks(), ["reader", "writer", "sweep"]);
    assert!(!supervisor.abort("unknown"));
    assert!(supervisor.abort("writer"));
    let failure = supervisor.wait_for_failure().await;
    assert_eq!(failure.task, "writer");
    assert_eq!(failure.cause, FailureCause::Aborted);
    while supervisor.running_tasks() != ["reader", "sweep"] {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn only_the_first_failure_is_recorded() {
    let (supervisor, group) = supervisor_and_group();
    let (sender, receiver) = oneshot::channel::<()>();
    // The second task ends because the first task, which owns the sender, is dropped.
    group.spawn_essential("first", async move {
        std::future::pending::<()>().await;
        drop(sender);
    });
    group.spawn_essential("second", async move {
        let _ = receiver.await;
    });
    assert!(supervisor.abort("first"));
    while !supervisor.running_tasks().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(supervisor.first_failure().unwrap().task, "first");
}

#[tokio::test]
async fn the_failure_of_a_fallible_task_contains_its_error() {
    let supervisor = Supervisor::new();
    let group = TaskGroup::supervised_by(&supervisor);
    group.spawn_fallible("file_check", async {
        Err("the file was deleted".to_owned())
    });
    let failure = supervisor.wait_for_failure().await;
    assert_eq!(
        failure.to_string(),
        "task file_check failed: the file was deleted"
    );
}
