//! Test of partition fencing. While a `record` process is suspended, Kafka assigns its partitions
//! to another process. When the suspended process resumes, it must not write its batch.

use sqlx::{Connection as _, PgConnection};

use test_support::cluster::Cluster;
use test_support::mqtt::{Connect, RawClient, control_out_topic, offline_message, online_message};
use test_support::services::Service;
use test_support::{eventually, unique_id};

#[tokio::test]
async fn a_resumed_record_process_discards_its_batch_if_it_no_longer_owns_the_partitions() {
    let postgres = Service::start_postgres().await;
    let port = postgres.port;
    let cluster =
        Cluster::with_services(Service::start_mosquitto().await, Some(postgres), None).await;
    let _ingest = cluster.start(&["ingest"]).await;
    let suspended_process = cluster.start(&["record"]).await;
    let api = cluster.start(&["api"]).await;
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let client_id = unique_id("reassigned");
    let mut client = RawClient::connect(&address, &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    api.wait_until_connected(&client_id).await;

    // A lock on the table prevents the process from writing its batch.
    let database = cluster.setting("postgres.database");
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database}?sslmode=disable");
    let mut lock_holder = PgConnection::connect(&url).await.unwrap();
    sqlx::query("BEGIN")
        .execute(&mut lock_holder)
        .await
        .unwrap();
    sqlx::query("LOCK TABLE connections IN EXCLUSIVE MODE")
        .execute(&mut lock_holder)
        .await
        .unwrap();
    let mut blocked_message = online_message();
    blocked_message["content"]["tags"] = serde_json::json!({"written_by": "suspended process"});
    client
        .must_publish(&control_out_topic(&client_id), &blocked_message)
        .await;
    let mut monitor = PgConnection::connect(&url).await.unwrap();
    wait_for_lock_waiter(&mut monitor).await;
    // The next message is invalid. Therefore the process must write a dead letter, even if the
    // online message in its batch is already recorded.
    client
        .publish(&control_out_topic(&client_id), b"not json")
        .await
        .unwrap();
    eventually("two messages in flight", || async {
        let in_flight = suspended_process
            .read_metric("cloud_connector_record_in_flight_messages", "")
            .await;
        (in_flight > 1.5).then_some(())
    })
    .await;
    suspended_process.send_signal("STOP");
    // The test terminates the database session of the suspended process. Otherwise the statement of
    // that process would complete when the lock is released.
    let terminate_waiters = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock'";
    sqlx::query(terminate_waiters)
        .execute(&mut monitor)
        .await
        .unwrap();
    sqlx::query("COMMIT")
        .execute(&mut lock_holder)
        .await
        .unwrap();

    // Kafka assigns the partitions to another process, which reads the same messages and all later
    // messages.
    let other_process = cluster.start(&["record"]).await;
    client
        .must_publish(&control_out_topic(&client_id), &offline_message())
        .await;
    api.wait_until_disconnected(&client_id).await;

    // The resumed process retries its batch. The online message in the batch must not connect the
    // client again. The database must reject the dead letter, because another process owns the
    // partitions.
    suspended_process.send_signal("CONT");
    eventually("the resumed process to be fenced", || async {
        let fenced_metric = "cloud_connector_record_partitions_fenced_total";
        (suspended_process.read_metric(fenced_metric, "").await > 0.0).then_some(())
    })
    .await;
    assert!(api.list_client_ids().await.unwrap().is_empty());
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    api.wait_until_connected(&client_id).await;
    // Both processes can still record messages.
    for n in 0..20 {
        let other_id = format!("{client_id}-{n}");
        let mut client = RawClient::connect(&address, &Connect::new(&other_id)).await;
        client
            .must_publish(&control_out_topic(&other_id), &online_message())
            .await;
    }
    let deadline = std::time::Instant::now() + test_support::CONDITION_TIMEOUT;
    loop {
        let listed_ids = api.list_client_ids().await.unwrap();
        if listed_ids.len() == 21 {
            break;
        }
        let is_past_deadline = std::time::Instant::now() > deadline;
        assert!(
            !is_past_deadline,
            "only these clients were recorded: {listed_ids:?}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    drop(other_process);
}

/// Waits until a database session waits for a lock.
async fn wait_for_lock_waiter(monitor: &mut PgConnection) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let deadline = std::time::Instant::now() + test_support::CONDITION_TIMEOUT;
    loop {
        let waiting_sessions: i64 = sqlx::query_scalar(sql)
            .fetch_one(&mut *monitor)
            .await
            .unwrap();
        if waiting_sessions > 0 {
            return;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "timed out waiting for a session that waits for the lock"
        );
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
