//! Many concurrent callers of `/readiness`, which needs no authentication.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use api::ProbeState;
use cloud_connector::config::{Overrides, load_with_environment};
use futures::FutureExt as _;
use futures::future::join_all;
use service::{Health, Supervisor, TaskGroup};

/// Serves the probes of `health` on a free port. Returns the URL of `/readiness`.
async fn serve_readiness(health: &Health) -> String {
    let config = load_with_environment(&Overrides::default(), [])
        .unwrap()
        .config;
    let probes = ProbeState {
        health: health.clone(),
        render_metrics: String::new,
    };
    let router = api::probe_router(probes, &config.http);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(api::serve(listener, None, router, TaskGroup::new()));
    format!("http://{address}/readiness")
}

/// Adds a component whose check takes 50 ms. Returns the number of calls of the check.
fn add_counted_check(health: &Health) -> Arc<AtomicUsize> {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    health.add_check("database", move || {
        counter.fetch_add(1, Ordering::Relaxed);
        async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(())
        }
        .boxed()
    });
    calls
}

async fn readiness_status(http_client: &reqwest::Client, url: &str) -> u16 {
    let response = http_client.get(url).send().await.unwrap();
    response.status().as_u16()
}

#[tokio::test]
async fn many_readiness_requests_run_each_health_check_at_most_once_per_second() {
    let health = Health::new(&Supervisor::new());
    let calls = add_counted_check(&health);
    let url = serve_readiness(&health).await;
    let http_client = test_support::http_client();
    let started_at = Instant::now();
    let statuses = join_all((0..200).map(|_| readiness_status(&http_client, &url))).await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    let (calls, seconds) = (
        calls.load(Ordering::Relaxed),
        started_at.elapsed().as_secs(),
    );
    let max_calls = usize::try_from(seconds).unwrap() + 1;
    assert!(calls <= max_calls, "{calls} calls in {seconds} s");
}

#[tokio::test]
async fn a_shutdown_or_a_failed_task_makes_readiness_fail_at_once() {
    let http_client = test_support::http_client();
    for fail_a_task in [false, true] {
        let supervisor = Supervisor::new();
        let health = Health::new(&supervisor);
        add_counted_check(&health);
        let url = serve_readiness(&health).await;
        assert_eq!(readiness_status(&http_client, &url).await, 200);
        if fail_a_task {
            TaskGroup::supervised_by(&supervisor).spawn_essential("writer", async {});
            supervisor.wait_for_failure().await;
        } else {
            health.begin_shutdown();
        }
        assert_eq!(readiness_status(&http_client, &url).await, 503);
    }
}
