//! Tests of shutdown, crash and restart in embedded mode.

use std::time::Duration;

use serde_json::{Value, json};

use test_support::mqtt::{Connect, control_out_topic, data_in_topic, online_message};
use test_support::{Connector, RawClient, eventually, unique_id};

/// Connects a client with a last will, and publishes an online message of the client.
async fn connect_and_publish_online(connector: &Connector, client_id: &str) -> RawClient {
    let connect = Connect::new(client_id).offline_will();
    let mut client = RawClient::connect(&connector.mqtt_address, &connect).await;
    client
        .must_publish(&control_out_topic(client_id), &online_message())
        .await;
    client
}

#[tokio::test]
async fn sigterm_exits_with_code_0_and_discards_the_last_wills_of_connected_clients() {
    let mut connector = Connector::start().await;
    let client_id = unique_id("connected");
    let mut client = connect_and_publish_online(&connector, &client_id).await;
    connector.send_signal("TERM");
    client.wait_for_close().await;
    assert_eq!(connector.wait_for_exit().await.code(), Some(0));
    // The shutdown closed the connection, so the broker did not publish the last will. Therefore
    // the client is still listed as connected.
    connector.start_process().await;
    assert_eq!(connector.list_client_ids("10000").await, [client_id]);
}

#[tokio::test]
async fn a_second_sigint_during_shutdown_exits_immediately() {
    let mut connector = Connector::builder()
        .set("shutdown.grace_period", "10m")
        .start()
        .await;
    let client_id = unique_id("blocked");
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(&client_id)).await;
    // While database writes are blocked, the shutdown waits for the last batch until the grace
    // period ends.
    let path = connector.data_dir().join("cloud-connector.db");
    let url = format!("sqlite://{}", path.display());
    let mut blocker = <sqlx::SqliteConnection as sqlx::Connection>::connect(&url)
        .await
        .unwrap();
    sqlx::query("BEGIN EXCLUSIVE")
        .execute(&mut blocker)
        .await
        .unwrap();
    client
        .send_publish(
            &control_out_topic(&client_id),
            online_message().to_string().as_bytes(),
            false,
        )
        .await;
    eventually("the readiness probe to fail", || async {
        (connector.readiness().await.0 == 503).then_some(())
    })
    .await;
    connector.send_signal("INT");
    // The HTTP listener closes first. After that the connector waits for the batch.
    eventually("the HTTP listener to close", || async {
        connector
            .unauthenticated_request("GET", "/liveness")
            .send()
            .await
            .is_err()
            .then_some(())
    })
    .await;
    connector.send_signal("INT");
    assert_eq!(connector.wait_for_exit().await.code(), Some(130));
}

#[tokio::test]
async fn after_a_crash_clients_that_do_not_reconnect_in_time_are_marked_disconnected() {
    let mut connector = Connector::builder()
        .set("broker.reconnect_grace", "10s")
        .start()
        .await;
    let (reconnecting_id, absent_id) = (unique_id("present"), unique_id("absent"));
    let clients = (
        connect_and_publish_online(&connector, &reconnecting_id).await,
        connect_and_publish_online(&connector, &absent_id).await,
    );
    connector.kill().await;
    drop(clients);
    connector.start_process().await;
    let mut listed_ids = connector.list_client_ids("10000").await;
    listed_ids.sort();
    let mut expected_ids = [reconnecting_id.clone(), absent_id.clone()];
    expected_ids.sort();
    assert_eq!(listed_ids, expected_ids);
    // One client reconnects without an online message, as newer clients do after an automatic
    // reconnect.
    let _client = RawClient::connect(
        &connector.mqtt_address,
        &Connect::new(&reconnecting_id).offline_will(),
    )
    .await;
    connector.wait_until_disconnected(&absent_id).await;
    assert_eq!(connector.list_client_ids("10000").await, [reconnecting_id]);
}

/// Returns the status of the client according to each endpoint, and the HTTP status of a message to
/// the client.
async fn reported_statuses(connector: &Connector, client_id: &str) -> (Vec<String>, u16) {
    let connection = format!("/v2/connections/{client_id}");
    let node = json!({"account": "111000", "node_id": client_id});
    let requests = [
        connector.request("GET", &format!("{connection}/status")),
        connector
            .request("POST", "/v2/connections/status")
            .json(&json!({"client_ids": [client_id]})),
        connector.request("POST", &format!("{connection}/check?level=1")),
        connector.request("POST", &format!("{connection}/check?level=2&timeout=1")),
        connector
            .request("POST", "/v1/connection_status")
            .header("x-rh-cloud-connector-account", "111000")
            .json(&node),
    ];
    let mut statuses = Vec::new();
    for request in requests {
        let response = request.send().await.unwrap();
        let code = response.status();
        let body: Value = response.json().await.unwrap();
        assert_eq!(code, 200, "{body}");
        let status = body.get("status").unwrap_or(&body["data"][0]["status"]);
        statuses.push(status.as_str().unwrap().to_owned());
    }
    let body = json!({"directive": "x"});
    let (message_status, _) = connector.send_message(client_id, body).await;
    (statuses, message_status)
}

#[tokio::test]
async fn status_check_and_message_agree_until_a_client_has_reconnected_after_a_restart() {
    let mut connector = Connector::start().await;
    let client_id = unique_id("reconnecting");
    let client = connect_and_publish_online(&connector, &client_id).await;
    connector.kill().await;
    drop(client);
    connector.start_process().await;
    let (statuses, message_status) = reported_statuses(&connector, &client_id).await;
    assert_eq!(statuses, ["disconnected"; 5]);
    assert_eq!(message_status, 404);
    // The list still contains the client, because the grace period has not ended.
    assert_eq!(
        connector.list_client_ids("10000").await,
        [client_id.as_str()]
    );
    // The client reconnects without an online message.
    let connect = Connect::new(&client_id).offline_will();
    let mut client = RawClient::connect(&connector.mqtt_address, &connect).await;
    assert_eq!(client.subscribe(&data_in_topic(&client_id)).await, 1);
    let control_in = format!("redhat/insights/{client_id}/control/in");
    assert_eq!(client.subscribe(&control_in).await, 1);
    let (statuses, message_status) = reported_statuses(&connector, &client_id).await;
    assert_eq!(statuses, ["connected"; 5]);
    assert_eq!(message_status, 201);
}

#[tokio::test]
async fn a_second_process_with_the_same_data_folder_exits_and_prints_the_first_process_id() {
    let connector = Connector::start().await;
    let data_dir = connector.data_dir();
    let second_process = test_support::connector_command()
        .args([
            "run",
            "--http",
            "127.0.0.1:0",
            "--mqtt",
            "127.0.0.1:0",
            "--data-dir",
        ])
        .arg(&data_dir)
        .output();
    let second_output = tokio::time::timeout(Duration::from_secs(30), second_process)
        .await
        .unwrap()
        .unwrap();
    let error = String::from_utf8(second_output.stderr).unwrap();
    assert_eq!(second_output.status.code(), Some(1), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains("in use by another"), "{error}");
    assert!(error.contains(&connector.pid().to_string()), "{error}");
    assert!(error.contains("--data-dir"), "{error}");
    assert_eq!(connector.readiness().await.0, 200);
}

#[tokio::test]
async fn unfinished_requests_do_not_delay_shutdown_until_the_grace_period_ends() {
    use tokio::io::AsyncWriteExt as _;
    let mut connector = Connector::builder()
        .set("shutdown.grace_period", "8s")
        .start()
        .await;
    let http_address = connector.http_url.trim_start_matches("http://").to_owned();
    // The test opens three unfinished connections: half an HTTP request, an MQTT connection without
    // CONNECT, and half a CONNECT packet.
    let mut half_request = tokio::net::TcpStream::connect(&http_address).await.unwrap();
    half_request.write_all(b"GET /live").await.unwrap();
    let _without_connect = RawClient::connect_tcp(&connector.mqtt_address).await;
    let mut half_connect = RawClient::connect_tcp(&connector.mqtt_address).await;
    half_connect.write(&[0x10, 60, 0, 4]).await;
    let client_id = unique_id("connected");
    let _client = connect_and_publish_online(&connector, &client_id).await;
    let shutdown_start = std::time::Instant::now();
    connector.send_signal("TERM");
    assert_eq!(connector.wait_for_exit().await.code(), Some(0));
    assert!(
        shutdown_start.elapsed() < Duration::from_secs(7),
        "{:?}",
        shutdown_start.elapsed()
    );
    connector.start_process().await;
    assert_eq!(connector.list_client_ids("10000").await, [client_id]);
}

#[tokio::test]
async fn the_connector_works_while_stdout_and_stderr_are_closed() {
    use std::process::Stdio;
    let temp_dir = tempfile::tempdir().unwrap();
    let mut child = test_support::connector_command()
        .args([
            "run",
            "--http",
            "127.0.0.1:0",
            "--mqtt",
            "127.0.0.1:0",
            "--data-dir",
        ])
        .arg(temp_dir.path().join("data"))
        .env("CLOUD_CONNECTOR__LOG__LEVEL", "trace")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mqtt_address = {
        use tokio::io::{AsyncBufReadExt as _, BufReader};
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        loop {
            let line = lines.next_line().await.unwrap().unwrap();
            if let Some(rest) = line.trim().strip_prefix("MQTT  ") {
                break rest.split(' ').next().unwrap().to_owned();
            }
        }
    };
    // stdout is already closed. The test closes stderr, too, so the connector cannot write its log.
    drop(child.stderr.take());
    let client_id = unique_id("closed-output");
    let mut client = RawClient::connect(&mqtt_address, &Connect::new(&client_id)).await;
    assert!(
        client
            .publish(&control_out_topic(&client_id), b"garbage")
            .await
            .is_some()
    );
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    test_support::connector::send_signal(pid, "TERM");
    assert_eq!(child.wait().await.unwrap().code(), Some(0));
}
