//! Two `record` processes; one is suspended while it holds a batch until the other has its partitions.

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
    let client_id = unique_id("contested");
    let mut client = RawClient::connect(&address, &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out(&client_id), &online())
        .await;
    api.wait_until_connected(&client_id).await;

    // It holds a batch that it cannot write: the table is locked.
    let database = cluster.setting("postgres.database");
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database}?sslmode=disable");
    let mut blocker = PgConnection::connect(&url).await.unwrap();
    sqlx::query("BEGIN").execute(&mut blocker).await.unwrap();
    sqlx::query("LOCK TABLE connections IN EXCLUSIVE MODE")
        .execute(&mut blocker)
        .await
        .unwrap();
    let mut stale = online();
    stale["content"]["tags"] = serde_json::json!({"written": "by the suspended one"});
    client.must_publish(&control_out(&client_id), &stale).await;
    let mut watcher = PgConnection::connect(&url).await.unwrap();
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    wait_for_lock_waiter(&mut watcher, waits).await;
    // And one behind it that must be written whatever is known of the client: a dead letter.
    client
        .publish(&control_out(&client_id), b"never to be read")
        .await
        .unwrap();
    eventually("both are here", || async {
        let in_flight = suspended
            .metric("cloud_connector_record_in_flight_messages", "")
            .await;
        (in_flight > 1.5).then_some(())
    })
    .await;
    suspended.signal("STOP");
    // Its statement must not go through when the lock is lifted: it is ended in the server, as a
    // lost connection would be.
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    sqlx::query(end).execute(&mut watcher).await.unwrap();
    sqlx::query("COMMIT").execute(&mut blocker).await.unwrap();

    // The other one gets its partitions, and with them the same message and what came after it.
    let other = cluster.start(&["record"]).await;
    client
        .must_publish(&control_out(&client_id), &offline())
        .await;
    api.wait_until_disconnected(&client_id).await;

    // What the suspended one holds would bring the client back from the dead. It sees that the
    // message was recorded, and is kept from writing the other.
    suspended.signal("CONT");
    eventually("the suspended one drops its batch", || async {
        let fenced = "cloud_connector_record_partitions_fenced_total";
        (suspended.metric(fenced, "").await > 0.0).then_some(())
    })
    .await;
    assert!(api.list_client_ids().await.unwrap().is_empty());
    client
        .must_publish(&control_out(&client_id), &online())
        .await;
    api.wait_until_connected(&client_id).await;
    // Both go on working side by side.
    for n in 0..20 {
        let name = format!("{client_id}-{n}");
        let mut client = RawClient::connect(&address, &Connect::new(&name)).await;
        client.must_publish(&control_out(&name), &online()).await;
    }
    let deadline = std::time::Instant::now() + crate::support::TIMEOUT;
    loop {
        let listed = api.list_client_ids().await.unwrap();
        if listed.len() == 21 {
            break;
        }
        let late = std::time::Instant::now() > deadline;
        assert!(!late, "only these were recorded: {listed:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    drop(other);
}

async fn wait_for_lock_waiter(watcher: &mut PgConnection, sql: &'static str) {
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
            "nobody waits for the lock"
        );
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
