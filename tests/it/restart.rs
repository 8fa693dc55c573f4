//! Stopping, dying, starting again.

use std::time::Duration;

use crate::support::mqtt::{Connect, control_out, online};
use crate::support::{Connector, RawClient, eventually, unique};

async fn connected(connector: &Connector, name: &str) -> RawClient {
    let mut client = RawClient::connect(&connector.mqtt, &Connect::new(name).offline_will()).await;
    client.must_publish(&control_out(name), &online()).await;
    client
}

#[tokio::test]
async fn sigterm_drains_and_exits_0_and_wills_at_shutdown_are_discarded() {
    let mut connector = Connector::start().await;
    let me = unique("survivor");
    let mut client = connected(&connector, &me).await;
    connector.signal("TERM");
    client.closed().await;
    assert_eq!(connector.ended().await.code(), Some(0));
    // The client did not leave; the connector did.
    connector.start_again().await;
    assert_eq!(connector.listed("10000").await, [me]);
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let mut connector = Connector::setup()
        .set("shutdown.grace_period", "10m")
        .start()
        .await;
    let me = unique("stuck");
    let mut client = RawClient::connect(&connector.mqtt, &Connect::new(&me)).await;
    // A database that does not take the last batch: the drain would wait for the whole grace.
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
        .publish_only(&control_out(&me), online().to_string().as_bytes(), false)
        .await;
    eventually("a held batch", || async {
        (connector.readiness().await.0 == 503).then_some(())
    })
    .await;
    connector.signal("INT");
    // Not serving any more: it is draining.
    eventually("the end of HTTP", || async {
        connector
            .bare("GET", "/liveness")
            .send()
            .await
            .is_err()
            .then_some(())
    })
    .await;
    connector.signal("INT");
    assert_eq!(connector.ended().await.code(), Some(130));
}

#[tokio::test]
async fn after_a_crash_what_was_acknowledged_is_there_and_who_stays_away_is_gone() {
    let mut connector = Connector::setup()
        .set("broker.reconnect_grace", "10s")
        .start()
        .await;
    let (back, away) = (unique("back"), unique("away"));
    let clients = (
        connected(&connector, &back).await,
        connected(&connector, &away).await,
    );
    connector.kill().await;
    drop(clients);
    connector.start_again().await;
    let mut listed = connector.listed("10000").await;
    listed.sort();
    let mut both = [back.clone(), away.clone()];
    both.sort();
    assert_eq!(listed, both);
    // It is back and says nothing, as newer clients do after an automatic reconnect.
    let _client = RawClient::connect(&connector.mqtt, &Connect::new(&back).offline_will()).await;
    connector.wait_for(&away, false).await;
    assert_eq!(connector.listed("10000").await, [back]);
}

#[tokio::test]
async fn a_second_instance_on_the_same_folder_or_port_is_told_clearly() {
    let connector = Connector::start().await;
    let data = connector.data_dir();
    let second = crate::support::program()
        .args([
            "run",
            "--http",
            "127.0.0.1:0",
            "--mqtt",
            "127.0.0.1:0",
            "--data-dir",
        ])
        .arg(&data)
        .output();
    let second = tokio::time::timeout(Duration::from_secs(30), second)
        .await
        .unwrap()
        .unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("in use by another"), "{said}");
    assert!(said.contains(&connector.pid().to_string()), "{said}");
    assert!(said.contains("--data-dir"), "{said}");
    assert_eq!(connector.readiness().await.0, 200);
}

#[tokio::test]
async fn peers_that_do_not_finish_hold_the_end_up_for_a_moment_only() {
    use tokio::io::AsyncWriteExt as _;
    let mut connector = Connector::setup()
        .set("shutdown.grace_period", "8s")
        .start()
        .await;
    let http = connector.http.trim_start_matches("http://").to_owned();
    // Half a request, a silent MQTT peer, half a CONNECT.
    let mut half = tokio::net::TcpStream::connect(&http).await.unwrap();
    half.write_all(b"GET /live").await.unwrap();
    let _silent = RawClient::dial(&connector.mqtt).await;
    let mut stuck = RawClient::dial(&connector.mqtt).await;
    stuck.write(&[0x10, 60, 0, 4]).await;
    let me = unique("there");
    let _client = connected(&connector, &me).await;
    let started = std::time::Instant::now();
    connector.signal("TERM");
    assert_eq!(connector.ended().await.code(), Some(0));
    assert!(
        started.elapsed() < Duration::from_secs(7),
        "{:?}",
        started.elapsed()
    );
    connector.start_again().await;
    assert_eq!(connector.listed("10000").await, [me]);
}

#[tokio::test]
async fn nobody_reading_its_output_harms_nothing() {
    use std::process::Stdio;
    let folder = tempfile::tempdir().unwrap();
    let mut child = crate::support::program()
        .args([
            "run",
            "--http",
            "127.0.0.1:0",
            "--mqtt",
            "127.0.0.1:0",
            "--data-dir",
        ])
        .arg(folder.path().join("data"))
        .env("CLOUD_CONNECTOR__LOG__LEVEL", "trace")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mqtt = {
        use tokio::io::{AsyncBufReadExt as _, BufReader};
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        loop {
            let line = lines.next_line().await.unwrap().unwrap();
            if let Some(rest) = line.trim().strip_prefix("MQTT  ") {
                break rest.split(' ').next().unwrap().to_owned();
            }
        }
    };
    // Both ends are closed now; every line that it logs from here on cannot be written.
    drop(child.stderr.take());
    let me = unique("unheard");
    let mut client = RawClient::connect(&mqtt, &Connect::new(&me)).await;
    assert!(
        client
            .publish(&control_out(&me), b"garbage")
            .await
            .is_some()
    );
    client.must_publish(&control_out(&me), &online()).await;
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    crate::support::connector::send_signal(pid, "TERM");
    assert_eq!(child.wait().await.unwrap().code(), Some(0));
}
