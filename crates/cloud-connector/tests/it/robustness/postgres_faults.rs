//! PostgreSQL connections that stop responding.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use test_support::cluster::{Cluster, ConnectorProcess};
use test_support::connector::send_signal;
use test_support::mqtt::{Connect, control_out_topic, online_message};
use test_support::services::{Service, shared_services};
use test_support::{RawClient, unique_id};

/// A TCP proxy between the connector and PostgreSQL. It can stop forwarding data without closing
/// the connections, as after a failed network path.
struct Proxy {
    port: u16,
    /// Connections of older generations no longer forward data.
    generation: Arc<watch::Sender<u64>>,
}

impl Proxy {
    async fn start(server_port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let generation = Arc::new(watch::Sender::new(0));
        let current = generation.clone();
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server_port)).await;
                let (client_reader, client_writer) = client.into_split();
                let (server_reader, server_writer) = server.unwrap().into_split();
                tokio::spawn(forward(client_reader, server_writer, current.subscribe()));
                tokio::spawn(forward(server_reader, client_writer, current.subscribe()));
            }
        });
        Self { port, generation }
    }

    /// Stops forwarding on all connections that exist now. Later connections work.
    fn freeze_open_connections(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }
}

/// Copies data until the end of the stream. After a new generation starts, neither copies data nor
/// closes a connection.
async fn forward(
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    mut generation: watch::Receiver<u64>,
) {
    generation.mark_unchanged();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = tokio::select! {
            biased;
            _ = generation.changed() => std::future::pending().await,
            length = reader.read(&mut buffer) => length.unwrap_or(0),
        };
        if length == 0 || writer.write_all(&buffer[..length]).await.is_err() {
            let _ = writer.shutdown().await;
            return;
        }
    }
}

/// Publishes an online message through Mosquitto. Returns the id of the client.
async fn publish_online(cluster: &Cluster, prefix: &str) -> String {
    let client_id = unique_id(prefix);
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let connect = Connect::new(&client_id).without_keep_alive();
    let mut client = RawClient::connect(&address, &connect).await;
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    client_id
}

/// Publishes an online message and waits until the API lists the client. Returns the elapsed time.
async fn record_client(cluster: &Cluster, process: &ConnectorProcess, prefix: &str) -> Duration {
    let started_at = Instant::now();
    let client_id = publish_online(cluster, prefix).await;
    process.wait_until_connected(&client_id).await;
    started_at.elapsed()
}

#[tokio::test]
async fn connections_that_stop_responding_are_replaced() {
    let server_port = shared_services().await.postgres_port;
    let proxy = Proxy::start(server_port).await;
    let cluster = Cluster::new()
        .await
        .set("postgres.port", proxy.port)
        .set("postgres.statement_timeout", "2s")
        .set("postgres.response_timeout", "3s")
        // If the pool lost a connection at each fault, it would be empty after the second fault.
        .set("postgres.max_connections", 4);
    let process = cluster.start(&[]).await;
    record_client(&cluster, &process, "before-freeze").await;
    for round in 0..3 {
        // Statements are in flight when the connections stop responding.
        let publishing: Vec<_> = (0..20)
            .map(|_| publish_online(&cluster, "in-flight"))
            .collect();
        let (client_ids, ()) = tokio::join!(futures::future::join_all(publishing), async {
            tokio::task::yield_now().await;
            proxy.freeze_open_connections();
        });
        let frozen_at = Instant::now();
        for client_id in &client_ids {
            process.wait_until_connected(client_id).await;
        }
        let recovered_after = frozen_at.elapsed();
        println!("round {round}: recorded {recovered_after:?} after the connections froze");
        assert!(
            recovered_after < Duration::from_secs(15),
            "round {round}: {recovered_after:?}"
        );
        process.wait_until_ready().await;
        let elapsed = record_client(&cluster, &process, "after-freeze").await;
        assert!(
            elapsed < Duration::from_secs(5),
            "round {round}: {elapsed:?}"
        );
    }
}

/// Sends a signal to the PostgreSQL server and to all of its processes.
fn signal_server(postgres: &Service, signal_name: &str) {
    let pid_file = std::fs::read_to_string(postgres.file_path("pid")).unwrap();
    let mut pids: Vec<i32> = vec![pid_file.trim().parse().unwrap()];
    let parents = parents_of_processes();
    let mut index = 0;
    while let Some(parent) = pids.get(index).copied() {
        pids.extend(
            parents
                .iter()
                .filter(|(_, p)| **p == parent)
                .map(|(pid, _)| *pid),
        );
        index += 1;
    }
    let (server, children) = pids.split_first().unwrap();
    send_signal(*server, signal_name);
    for pid in children {
        // A process of the server can end at any time, for example an autovacuum worker.
        let _ = std::process::Command::new("kill")
            .args([&format!("-{signal_name}"), &pid.to_string()])
            .stderr(std::process::Stdio::null())
            .status();
    }
}

/// Returns the parent of each process.
fn parents_of_processes() -> HashMap<i32, i32> {
    let mut parents = HashMap::new();
    for entry in std::fs::read_dir("/proc").unwrap() {
        let path = entry.unwrap().path();
        let pid = path
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        let stat = std::fs::read_to_string(path.join("stat"));
        if let (Some(pid), Ok(stat)) = (pid, stat) {
            // The process name in parentheses may contain spaces.
            let fields = stat.rsplit_once(") ").unwrap().1;
            let parent = fields.split(' ').nth(1).unwrap().parse().unwrap();
            parents.insert(pid, parent);
        }
    }
    parents
}

async fn cluster_with_private_postgres() -> Cluster {
    let (mosquitto, postgres) = tokio::join!(Service::start_mosquitto(), Service::start_postgres());
    Cluster::with_services(mosquitto, Some(postgres), None).await
}

#[tokio::test]
async fn a_stopped_server_blocks_neither_readiness_nor_shutdown() {
    let cluster = cluster_with_private_postgres()
        .await
        .set("postgres.statement_timeout", "2s")
        .set("postgres.response_timeout", "3s")
        .set("postgres.max_connections", 4)
        .set("shutdown.grace_period", "4s");
    let postgres = cluster.postgres.as_ref().unwrap();
    let process = cluster.start(&[]).await;
    record_client(&cluster, &process, "before-stop").await;

    signal_server(postgres, "STOP");
    let client_id = publish_online(&cluster, "during-stop").await;
    process.wait_until_not_ready().await;
    // More probes than the pool has connections.
    for _ in 0..6 {
        let requested_at = Instant::now();
        let (status, body) = process.readiness().await;
        let elapsed = requested_at.elapsed();
        assert_eq!(status, 503, "{body}");
        assert!(elapsed < Duration::from_secs(3), "{elapsed:?}: {body}");
    }
    signal_server(postgres, "CONT");
    let continued_at = Instant::now();
    process.wait_until_connected(&client_id).await;
    process.wait_until_ready().await;
    println!(
        "recorded {:?} after the server continued",
        continued_at.elapsed()
    );
    assert!(continued_at.elapsed() < Duration::from_secs(10));

    signal_server(postgres, "STOP");
    publish_online(&cluster, "at-shutdown").await;
    let stopped_at = Instant::now();
    process.send_signal("TERM");
    process.wait_for_exit().await;
    println!("exited {:?} after SIGTERM", stopped_at.elapsed());
    assert!(
        stopped_at.elapsed() < Duration::from_secs(7),
        "{:?}",
        stopped_at.elapsed()
    );
    signal_server(postgres, "CONT");
}

#[tokio::test]
async fn connections_to_a_server_that_became_read_only_are_replaced() {
    let cluster = cluster_with_private_postgres().await;
    let process = cluster.start(&[]).await;
    record_client(&cluster, &process, "before-failover").await;
    // The open sessions become read-only, as on a primary that became a standby. New sessions can
    // write, as on the new primary.
    let mut administrator = cluster.connect_to_database().await;
    let database = cluster.setting("postgres.database");
    for statement in [
        format!("ALTER DATABASE {database} SET default_transaction_read_only = off"),
        "ALTER SYSTEM SET default_transaction_read_only = on".to_owned(),
        "SELECT pg_reload_conf()".to_owned(),
    ] {
        let query = sqlx::query(sqlx::AssertSqlSafe(statement));
        query.execute(&mut administrator).await.unwrap();
    }
    for _ in 0..5 {
        let elapsed = record_client(&cluster, &process, "after-failover").await;
        println!("recorded after {elapsed:?}");
        assert!(elapsed < Duration::from_secs(10), "{elapsed:?}");
    }
    process.wait_until_ready().await;
}
