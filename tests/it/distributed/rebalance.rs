//! Partition fencing: a `record` process that is suspended while it writes a batch loses its
//! partitions to another process and must not write the batch later.

use sqlx::{Connection as _, PgConnection};

use crate::support::cluster::Cluster;
use crate::support::mqtt::{Connect, RawClient, control_out, offline, online};
use crate::support::services::Service;
use crate::support::{eventually, unique_id};

#[tokio::test]
async fn a_suspended_process_discards_its_batch_after_losing_its_partitions() {
    let postgres = Service::postgres().await;
    let port = postgres.port;
    let cluster = Cluster::with_services(Service::mosquitto().await, Some(postgres), None).await;
    let _ingest = cluster.start(&["ingest"]).await;
    let suspended = cluster.start(&["record"]).await;
    let api = cluster.start(&["api"]).await;
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let client_id = unique_id("reassigned");
    let mut client = RawClient::connect(&address, &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out(&client_id), &online())
        .await;
    api.wait_until_connected(&client_id).await;

    // A lock on the table keeps the process from writing its batch.
    let database = cluster.setting("postgres.database");
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database}?sslmode=disable");
    let mut blocker = PgConnection::connect(&url).await.unwrap();
    sqlx::query("BEGIN").execute(&mut blocker).await.unwrap();
    sqlx::query("LOCK TABLE connections IN EXCLUSIVE MODE")
        .execute(&mut blocker)
        .await
        .unwrap();
    let mut blocked_message = online();
    blocked_message["content"]["tags"] = serde_json::json!({"written_by": "suspended process"});
    client
        .must_publish(&control_out(&client_id), &blocked_message)
        .await;
    let mut watcher = PgConnection::connect(&url).await.unwrap();
    wait_for_lock_waiter(&mut watcher).await;
    // The next message is a dead letter, which the process writes regardless of the stored state of
    // the client.
    client
        .publish(&control_out(&client_id), b"not json")
        .await
        .unwrap();
    eventually("two messages in flight", || async {
        let in_flight = suspended
            .metric("cloud_connector_record_in_flight_messages", "")
            .await;
        (in_flight > 1.5).then_some(())
    })
    .await;
    suspended.signal("STOP");
    // Terminate the session of the suspended process, so that its statement does not complete when
    // the lock is released.
    let terminate_waiters = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock'";
    sqlx::query(terminate_waiters)
        .execute(&mut watcher)
        .await
        .unwrap();
    sqlx::query("COMMIT").execute(&mut blocker).await.unwrap();

    // The other process gets the partitions and reads the same messages and the following ones.
    let other = cluster.start(&["record"]).await;
    client
        .must_publish(&control_out(&client_id), &offline())
        .await;
    api.wait_until_disconnected(&client_id).await;

    // The batch would list the client as connected again. The resumed process finds the online
    // message already recorded, and fencing keeps it from writing the dead letter.
    suspended.signal("CONT");
    eventually("the resumed process to be fenced", || async {
        let fenced_metric = "cloud_connector_record_partitions_fenced_total";
        (suspended.metric(fenced_metric, "").await > 0.0).then_some(())
    })
    .await;
    assert!(api.list_client_ids().await.unwrap().is_empty());
    client
        .must_publish(&control_out(&client_id), &online())
        .await;
    api.wait_until_connected(&client_id).await;
    // Both processes continue to record messages.
    for n in 0..20 {
        let other_id = format!("{client_id}-{n}");
        let mut client = RawClient::connect(&address, &Connect::new(&other_id)).await;
        client
            .must_publish(&control_out(&other_id), &online())
            .await;
    }
    let deadline = std::time::Instant::now() + crate::support::TIMEOUT;
    loop {
        let listed = api.list_client_ids().await.unwrap();
        if listed.len() == 21 {
            break;
        }
        let is_late = std::time::Instant::now() > deadline;
        assert!(!is_late, "only these clients were recorded: {listed:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    drop(other);
}

/// Waits until a database session waits for a lock.
async fn wait_for_lock_waiter(watcher: &mut PgConnection) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let deadline = std::time::Instant::now() + crate::support::TIMEOUT;
    loop {
        let waiting: i64 = sqlx::query_scalar(sql)
            .fetch_one(&mut *watcher)
            .await
            .unwrap();
        if waiting > 0 {
            return;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "timed out waiting for a session that waits for the lock"
        );
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
